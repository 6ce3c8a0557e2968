"""First names, last names and cities of the people in the environment."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _names(
    "Aaliyah Aarav Abebe Adaeze Aiko Akua Alejandro Amara Amelia Amir Ana Anders Anh Anika Anouk Arjun Asha "
    "Astrid Ayşe Babajide Beatriz Bilal Björn Bruna Camille Carlos Chen Chiara Chidi Chloé Clara Daniel Dariusz "
    "Deepa Diego Dmitri Ebele Eero Elena Eleni Elif Emeka Emil Emma Esperanza Ewa Fatima Fatou Felix Femi "
    "Fernanda Finn Freya Gabriel Giulia Goran Grace Greta Hana Haruto Hassan Hedda Hiro Hugo Ibrahim Ines Ingrid "
    "Isabel Ivana Jae Jamal Jan Javier Jin Joana João Jonas Jun Kaan Kalani Kamala Karim Katya Keiko Kenji "
    "Khadija Kofi Kwame Laila Lars Layla Leilani Leo Li Lina Linh Lucía Luka Magda Maja Malik Manuel Marek María "
    "Marta Matteo Maya Mehmet Mei Miguel Mila Milan Mina Mohamed Nadia Naledi Nam Ngozi Nia Nikhil Nils Noa Noor "
    "Nuria Oksana Olga Omar Oskar Paolo Petra Pilar Priya Quynh Rafael Rania Ravi Renata Rohan Rosa Ruth Sadia "
    "Salma Samir Sana Santiago Sara Sefa Selam Sigrid Sofia Soo-ah Stefan Sunil Svetlana Tadeo Tala Tamar Tariq "
    "Tereza Thabo Thandi Theo Tomás Tuan Uma Valentina Viktor Wanjiru Wei Xiomara Yael Yara Yasmin Youssef Yuki "
    "Yusuf Zara Zeynep Zofia Zuri"
)

LAST_NAMES = _names(
    "Abdi Abebe Acheampong Adeyemi Aguilar Ahmed Almeida Andersson Aydın Bakker Banerjee Barbosa Bauer Becker "
    "Bello Berg Bianchi Bondarenko Boateng Castillo Chen Cheng Choi Cohen Costa Cruz Dang Das Demir Diallo Dias "
    "Dlamini Doan Dubois Eriksen Eze Farouk Fernández Ferrari Fischer Fontaine Fujita García Ghosh Gómez González "
    "Gupta Haddad Hansen Hassan Hernández Horvat Hosseini Huang Ibrahim Iyer Jansen Jensen Johansson Kamara Kang "
    "Kapoor Kaya Keita Khan Kim Kimani Kovač Kowalska Kumar Larsen Lê Lee Levi Lewis Li Lindqvist Liu López "
    "Mahlangu Malik Mbeki Mehta Mensah Meyer Mora Moreau Morales Müller Mutua Nakamura Ndiaye Nguyen Nielsen "
    "Novák Nowak Oduya Okafor Okonkwo Oliveira Osei Papadakis Park Patel Pereira Pham Popescu Qureshi Ramos Rao "
    "Reyes Ricci Rojas Romano Rossi Roy Salazar Sato Schmidt Sharma Silva Singh Sokolov Souza Suzuki Tanaka Tembo "
    "Thapa Torres Tran Traoré Tsegaye Usman Vargas Virtanen Wagner Walker Wang Watanabe Weber Wójcik Wong Wu "
    "Yamamoto Yılmaz Zhang Zhou Zulu"
)

CITIES = (
    "Lisbon", "Nairobi", "Osaka", "Toronto", "Lagos", "Istanbul", "Bogotá", "Kraków", "Pune", "Hanoi", "Gothenburg",
    "Wellington",
)  # fmt: skip

AGE_BANDS = ("13-17", "18-24", "25-34", "35-44", "45-54", "55+")
AGE_SHARES = (0.05, 0.22, 0.31, 0.21, 0.13, 0.08)
GENDERS = ("female", "male", "nonbinary", None)
GENDER_SHARES = (0.46, 0.44, 0.03, 0.07)
