"""What a log has no counterpart of, and what follows from that for everything after it."""

import pyarrow as pa
import pyarrow.compute as pc


def lacks_of(tables: dict[str, pa.Table], derived: dict[str, str]) -> dict[str, str]:
    """What is missing -> what follows."""
    found = {}
    if not tables["friendships"].num_rows:
        found["friendships"] = "no friends' posts among the candidates; features of ties and mutual friends stay at 0"
    if not tables["blocks"].num_rows:
        found["blocks"] = "nothing is hidden from anybody"
    if not tables["impressions"].num_rows:
        found["impressions"] = "no samples, so no ranker: counters and recall alone can be made"
    else:
        propensity = tables["impressions"]["propensity"]
        if propensity.null_count == len(propensity):
            found["propensities"] = "no off-policy estimate is possible: replay ranks logged posts and says no more"
        elif propensity.null_count:
            found["propensities of some impressions"] = "off-policy estimates hold for the impressions that have one"
        if "impressions.position" in derived:
            found["positions"] = "the bias of position cannot be told from what people like"
        if "impressions.viewed_ms" in derived:
            found["views"] = "what was shown and not looked at counts as a negative"
        if "requests.candidates" in derived:
            found["candidates"] = "another policy is judged over what was shown, not over what could have been"
    if not tables["actions"].num_rows:
        found["actions"] = "no labels: no model can be trained"
    if "posts without an author" in derived:
        found["authors"] = "features of authors and of ties with them are the same for all posts that name none"
    if "posts.created_at" in derived:
        found["moments of posts"] = "a post's age is the time since it was first seen in the log"
    if pc.all(pc.equal(tables["posts"]["topic"], 0), min_count=0).as_py():
        found["topics"] = "features of topics are the same for all posts"
    if not tables["sessions"].num_rows:
        found["sessions"] = "how often people come back is read off requests alone"
    return found
