"""What posts say: per topic a name, its character, and the pieces that its short texts are put together from."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """A topic. `bait`: how much it draws clicks that people regret; `talk`: how much it draws comments; both 0 to 1.

    A text is an opening, one of `things` and one of `closings`.
    """

    name: str
    bait: float
    talk: float
    openings: tuple[str, ...]
    things: tuple[str, ...]
    closings: tuple[str, ...]


def _topic(name: str, bait: float, talk: float, openings: str, things: str, closings: str) -> Topic:
    def split(text: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in text.split("|"))

    return Topic(name, bait, talk, split(openings), split(things), split(closings))


TOPICS = (
    _topic("home cooking", 0.0, 0.5, "Tonight I made|Third attempt at|Finally got right:|Sunday project:",
           "a slow lentil stew|my aunt's dumplings|a lemon tart|"
           "jollof rice|a pot of miso ramen|flatbread from scratch",
           "The kitchen smells like a holiday.|Leftovers for days.|"
           "Needed more salt, still gone in minutes.|Recipe if anyone wants it."),
    _topic("street food", 0.0, 0.3,
           "Best thing I ate today:|Queued half an hour for|Found it at last:|Lunch on the corner:",
           "grilled corn with chilli|a bowl of phở|simit and tea|arepas with cheese|vada pav|crispy squid",
           "Worth every minute.|Cash only, no sign, no regrets.|Go before noon.|Taking requests for a tour."),
    _topic("running", 0.0, 0.3, "This morning:|Legs are tired after|Training log:|Talked myself into",
           "10 km along the river|hill repeats in the rain|my first half marathon|"
           "an easy five with the dog|a long run before sunrise|intervals on the old track",
           "Slow, but it counts.|New personal best!|Who is in for Saturday?|Knees are filing a complaint."),
    _topic("football", 0.1, 0.9,
           "Still not over|Can we talk about|Say what you like about|The whole bar went quiet at",
           "that last-minute equaliser|the referee tonight|our back line|"
           "the away end's singing|a keeper scoring a header|that transfer rumour",
           "Season saved?|We never learn.|Watch it twice.|I have no voice left."),
    _topic("live music", 0.0, 0.4, "Last night:|Front row for|Ears still ringing from|Just got tickets for",
           "a brass band in a tiny basement|the choir at the old station|an open-air jazz evening|"
           "my cousin's first gig|a string quartet playing film scores|a drummer who stole the show",
           "Goosebumps.|Take me back.|One more song, please.|Who wants to come along?"),
    _topic("making music", 0.0, 0.4, "Practice room diary:|New in my hands:|Working on|Recorded on my phone:",
           "a fingerstyle piece in open tuning|a second-hand cello|a loop with far too much reverb|"
           "the bridge of a new song|scales, endless scales|a duet with my sister",
           "Rough, but I like it.|The neighbours are patient.|Advice welcome.|Feedback before I lose my nerve?"),
    _topic("films", 0.1, 0.7, "Just out of the cinema:|Rewatched|Nobody told me about|Unpopular opinion about",
           "a three-hour documentary on bees|that heist classic|a quiet film about a lighthouse|"
           "the sequel nobody asked for|a black-and-white comedy from 1940|a monster movie with a heart",
           "The ending!|No spoilers, go now.|I need to discuss this.|Popcorn was the best part."),
    _topic("books", 0.0, 0.6, "Stayed up too late with|On page 200 of|Just finished|Lending out",
           "a family saga set in Kerala|a slim novel about tides|a history of maps|"
           "a detective with a bad knee|essays on walking|a very strange ghost story",
           "Not ready to say goodbye.|What should I read next?|Underlined half of it.|Ask me in a week."),
    _topic("gardening", 0.0, 0.3, "Look what came up:|On the balcony:|Lost the battle over|First harvest:",
           "three brave tomatoes|sunflowers taller than me|a lemon tree in a bucket|"
           "the good strawberries|a carpet of thyme|beans, so many beans",
           "Patience pays.|The snails disagree.|Seeds to share.|Coming back in spring."),
    _topic("hiking", 0.0, 0.3,
           "Up before the sun for|Somewhere above the clouds:|Wrong turn, right place:|Boots off after",
           "the ridge path|a frozen waterfall|a hut with the best soup|"
           "wild horses on the plateau|two days without signal|a lake nobody mentioned",
           "No filter needed.|My calves remember.|Next time with you.|Map in the comments."),
    _topic("city life", 0.0, 0.6,
           "Only in this town:|Overheard on the tram:|Note to the neighbours:|Seen from my window:",
           "a parade nobody announced|a debate about pigeons|the new bike lane, full at last|"
           "a sofa on its way to a new life|the last phone booth|lights in every window at 5 a.m.",
           "Never change.|I love it here.|Somebody explain.|Bring an umbrella."),
    _topic("local politics", 0.35, 1.0,
           "So the council decided on|Hot take on|I read all 80 pages about|Has anyone understood",
           "the river crossing|rent caps|the school merger|"
           "the night bus cuts|the market square plan|parking in the old town",
           "Change my mind.|Meeting is on Tuesday, show up.|This will end in tears.|Finally, some courage."),
    _topic("science", 0.0, 0.5,
           "Today I learned about|Mind slightly blown by|A paper worth your time on|Explained to my kid:",
           "how octopuses taste with their arms|the age of starlight|why ice is slippery|"
           "moss that survives space|bees that count to four|the sound of auroras",
           "Nature wins again.|Source below.|I have questions.|Tell me more, experts."),
    _topic("space", 0.15, 0.4, "Clear sky tonight:|Launch diary:|Through a borrowed telescope:|Set an alarm for",
           "Saturn, rings and all|a rocket seen from the beach|meteors over the barn|"
           "the station passing in four minutes|a comet like a smudge|the eclipse, through cardboard",
           "We are very small.|Look up!|Cold feet, warm heart.|Photos do not do it justice."),
    _topic("gadgets", 0.3, 0.4, "Unboxed:|Two weeks with|I did not need|Fixed with tape:",
           "a keyboard louder than my car|a watch that nags me|a folding phone|"
           "headphones with a soul|a robot vacuum named Otto|a camera older than me",
           "Ask me anything.|Battery: heroic.|Send it back or keep it?|My wallet is hiding."),
    _topic("programming", 0.0, 0.6, "Four hours of debugging:|Shipped today:|Tabs, spaces and|Note to self about",
           "it was a time zone|a missing comma|my first compiler|"
           "a cache that never forgets|a test that passes for the wrong reason|a query from minutes to milliseconds",
           "I need a walk.|Commit message: sorry.|Read the docs, they said.|Rubber duck promoted."),
    _topic("parenting", 0.0, 0.7,
           "My daughter just asked about|Bedtime, attempt five:|Found in the washing machine:|Proud moment:",
           "where the moon goes|a dinosaur and a coin|first steps across the hall|"
           "a negotiation over peas|a drawing of our family as cats|reading aloud, all by himself",
           "I had no answer.|Send coffee.|They grow too fast.|Tips from the experienced?"),
    _topic("cats", 0.05, 0.4, "Breaking news:|The cat has decided about|Exhibit A:|Good morning from",
           "the new box, not the new bed|my keyboard|a sunbeam at 3 p.m.|"
           "an ambush behind the curtain|the top of the fridge|a staring contest with a moth",
           "I am only staff.|No regrets were shown.|Ten out of ten.|Send treats."),
    _topic("dogs", 0.05, 0.4, "Walk report:|Say hello to|Muddy evidence of|He heard the word:",
           "Biscuit, adopted on Friday|a stick of unreasonable size|the puddle incident|"
           "snow, for the first time|an old friend at the park|a stolen sandwich",
           "Best boy.|Tail still going.|Laundry again.|She runs this house."),
    _topic("celebrity gossip", 0.9, 0.3,
           "You will not believe|They were seen with|What really happened at|Everyone is talking about",
           "the secret wedding|the airport photo|the deleted post|"
           "a very public break-up|the stand-in on the red carpet|that mystery ring",
           "The third picture says it all.|Sources say more tomorrow.|I am shaking.|Draw your own conclusions."),
    _topic("miracle diets", 1.0, 0.2,
           "Doctors do not want you to know about|I lost weight with|Seven days of|One trick:",
           "celery water|a spoon of vinegar at dawn|the moon-phase fast|"
           "only eating round food|frozen garlic tea|the cabbage protocol",
           "Day two will surprise you.|Link for the full plan.|Try it before it is gone.|Results not typical."),
    _topic("get rich quick", 1.0, 0.2,
           "This changed my life:|Only ten places left for|My cousin earns daily with|Stop working, start",
           "the 4-minute trade|a coin nobody has heard of|reselling luck|"
           "the passive-income blueprint|domains of the future|an app that pays you to sleep",
           "Comment YES for details.|Not financial advice.|Act today.|He quit his job on Monday."),
    _topic("travel", 0.1, 0.4, "Greetings from|Two trains and a ferry to|Packing for|Missed the bus, found",
           "a village with one café|the salt flats at dusk|the night market|"
           "a monastery above the clouds|the slowest train in the country|an island without cars",
           "Wish you were here.|Postcards are coming.|Recommendations, please.|I may never come back."),
    _topic("arts and crafts", 0.0, 0.3, "On the workbench:|Finished at last:|Glue everywhere, but|Learning to make",
           "a bowl that almost holds water|a sweater with two different sleeves|linocut cards|"
           "a bookshelf without nails|a quilt from old shirts|paper cranes, 412 so far",
           "Imperfect and mine.|Present sorted.|Next: something smaller.|Swaps welcome."),
)  # fmt: skip

QUOTE_WORDS = (
    "This, exactly.", "I see it differently.", "Adding to this:", "Reading it twice today.", "My friends need to see this.",
    "Tell me I am not the only one.", "Look at this!", "Not sure I agree.", "Thank you for saying it.", "Saving this one.",
)  # fmt: skip


def texts_of(topic: Topic) -> list[str]:
    """Every text that the topic's pieces make, in a fixed order."""
    return [
        f"{opening} {thing.rstrip('.')}. {closing}"
        for opening in topic.openings
        for thing in topic.things
        for closing in topic.closings
    ]
