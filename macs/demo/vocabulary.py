"""What the scenes can show and what the questions can ask about: names, colours, facts, dense label numbers."""

from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"

COLOURS = {
    "red": (215, 35, 40),
    "orange": (250, 140, 20),
    "yellow": (248, 222, 40),
    "green": (40, 155, 60),
    "blue": (35, 85, 215),
    "purple": (130, 45, 170),
    "pink": (250, 150, 195),
    "brown": (125, 75, 35),
    "black": (20, 20, 20),
    "white": (248, 248, 248),
}

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "ring")
CORNERS = {"triangle": 3, "square": 4, "diamond": 4, "circle": 0, "ring": 0}

# Everyday objects, drawn from the Noto Color Emoji font (SIL OFL 1.1): category -> name -> code point.
OBJECTS = {
    "animal": {
        "dog": "🐶", "cat": "🐱", "pig": "🐷", "cow": "🐮", "frog": "🐸", "lion": "🦁",
        "panda": "🐼", "monkey": "🐵", "fish": "🐟", "bird": "🐦", "turtle": "🐢", "bee": "🐝",
    },
    "food": {
        "apple": "🍎", "banana": "🍌", "grapes": "🍇", "lemon": "🍋", "cherry": "🍒",
        "carrot": "🥕", "pizza": "🍕", "burger": "🍔", "egg": "🥚", "cake": "🎂",
    },
    "vehicle": {
        "car": "🚗", "bus": "🚌", "bicycle": "🚲", "rocket": "🚀", "boat": "⛵", "train": "🚂", "tractor": "🚜",
    },
    "plant": {"tree": "🌳", "flower": "🌻", "cactus": "🌵"},
    "thing": {
        "ball": "⚽", "book": "📕", "key": "🔑", "clock": "⏰", "umbrella": "☂", "bell": "🔔",
        "guitar": "🎸", "lamp": "💡",
    },
}  # fmt: skip
OBJECT_NAMES = tuple(name for group in OBJECTS.values() for name in group)
CATEGORY_OF = {name: category for category, group in OBJECTS.items() for name in group}
PLURAL = {"cherry": "cherries", "fish": "fish", "bus": "buses", "cross": "crosses", "box": "boxes", "grapes": "grapes"}
PLURAL |= {"cactus": "cactuses", "food": "foods"}

# Stored knowledge: nothing in the image or the question tells these.
SOUND = {"dog": "woof", "cat": "meow", "pig": "oink", "cow": "moo", "frog": "croak", "lion": "roar", "bird": "tweet",
         "bee": "buzz"}  # fmt: skip
HOME = {"dog": "house", "cat": "house", "pig": "farm", "cow": "farm", "frog": "pond", "lion": "savanna",
        "panda": "forest", "monkey": "jungle", "fish": "water", "bird": "nest", "turtle": "sea", "bee": "hive"}  # fmt: skip
MADE_FOR = {"car": "road", "bus": "road", "bicycle": "road", "rocket": "space", "boat": "water", "train": "rail",
            "tractor": "field"}  # fmt: skip
TYPICAL_COLOUR = {"apple": "red", "banana": "yellow", "grapes": "purple", "lemon": "yellow", "cherry": "red",
                  "carrot": "orange", "frog": "green", "pig": "pink", "tree": "green",
                  "cactus": "green", "lion": "yellow", "monkey": "brown"}  # fmt: skip
OPPOSITE_PAIRS = (
    ("hot", "cold"), ("big", "small"), ("up", "down"), ("left", "right"), ("open", "closed"), ("day", "night"),
    ("fast", "slow"), ("light", "dark"), ("old", "new"), ("happy", "sad"), ("wet", "dry"), ("full", "empty"),
    ("high", "low"), ("hard", "soft"), ("good", "bad"), ("first", "last"), ("long", "short"), ("rich", "poor"),
    ("early", "late"), ("loud", "quiet"), ("yes", "no"), ("black", "white"), ("in", "out"), ("clean", "dirty"),
)  # fmt: skip
OPPOSITE = {a: b for pair in OPPOSITE_PAIRS for a, b in (pair, pair[::-1])}
MIX = {
    frozenset(("red", "yellow")): "orange",
    frozenset(("red", "blue")): "purple",
    frozenset(("blue", "yellow")): "green",
    frozenset(("red", "white")): "pink",
    frozenset(("red", "green")): "brown",
}
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
          "november", "december")  # fmt: skip
NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
                "twelve")  # fmt: skip
SIGN_WORDS = ("STOP", "OPEN", "EXIT", "SALE", "TAXI", "CAFE", "HOTEL", "BANK", "PARK", "ZOO", "GAS", "FREE", "BUS",
              "SHOP", "MENU", "PIZZA", "CINEMA", "LIVE", "NEWS", "HELP", "WIFI", "TOYS", "BOOKS", "FISH")  # fmt: skip

FONTS_COUNT = 4
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "0123456789"

# Dense labels under a visual token; 0 is background everywhere.
CLASSES = ("background", *SHAPES, *OBJECT_NAMES, *LETTERS, *DIGITS, "bar", "slice", "point")
CLASS_ID = {name: i for i, name in enumerate(CLASSES)}
COLOUR_ID = {"none": 0, **{name: i + 1 for i, name in enumerate(COLOURS)}}
DENSE = {"class": len(CLASSES), "colour": len(COLOUR_ID), "number": 14, "row": 10, "column": 10}
"""Dense labels and their sizes; number 0 is none, n + 1 the value n of a bar or the place n of a letter in its line."""
MIDDLE = 13  # the number under the middle of a shape or object

FAMILIES = ("reading", "charts", "attributes", "presence", "counting", "text")
"""Mirrors of TextVQA, ChartQA, MMBench, MME, RealWorldQA, and reasoning without an image."""


def plural(noun: str) -> str:
    """English plural of one of this world's nouns."""
    return PLURAL.get(noun, noun + "s")


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    if noun == "grapes":
        return "grapes"
    return ("an " if noun[0] in "aeiou" else "a ") + noun
