"""The sentences of the toy language, English and Chinese, family by family."""

import math
from functools import cache
from itertools import permutations, product

from transformer_block.language.known import Family, ToyLanguage

# The grammar. What each family asks for is in brackets.


def _weather() -> dict[str, float]:
    """Read the whole prompt: the adjective decides, eight words back."""
    places = {
        "nice": {"park": 0.8, "lake": 0.2},
        "hot": {"pool": 0.7, "lake": 0.3},
        "cold": {"sauna": 0.6, "café": 0.4},
        "bad": {"cinema": 0.6, "library": 0.4},
    }
    return {
        f"the weather is so {weather} today , {who} want to go to the [{place}] .": p / 8
        for weather, chances in places.items()
        for place, p in chances.items()
        for who in ("I", "we")
    }


def _weather_zh() -> dict[str, float]:
    """Do the same in Chinese."""
    places = {
        "好": {"公园": 0.8, "湖边": 0.2},
        "热": {"泳池": 0.7, "湖边": 0.3},
        "差": {"电影院": 0.6, "图书馆": 0.4},
    }
    return {
        f"{day} 天气 真 {weather} ， {who} 想 去 [{place}] 。": p / 12
        for weather, chances in places.items()
        for place, p in chances.items()
        for who in ("我", "我们")
        for day in ("今天", "周末")
    }


def _product() -> dict[str, float]:
    """Find what "its" stands for; find who is happy, and why."""
    parts = {
        "phone": ("screen", "battery"),
        "car": ("engine", "door"),
        "camera": ("lens", "flash"),
        "watch": ("strap", "dial"),
        "lamp": ("shade", "bulb"),
        "bike": ("saddle", "chain"),
    }
    look = {"screen": "bright", "flash": "bright", "bulb": "bright", "dial": "bright"}
    buyers = {"Mary": "she", "Anna": "she", "Tom": "he", "Peter": "he"}
    marked: dict[str, float] = {}
    for thing, (often, rarely) in parts.items():
        for part, p in ((often, 0.6), (rarely, 0.4)):
            about = f"{thing} , its [{part}] is {look.get(part, 'solid')} ."
            for company in ("Apple", "Nokia"):
                marked[f"{company} released a new {about}"] = p * 0.3 / 12
            for buyer in buyers:
                for state in ("new", "broken"):
                    marked[f"{buyer} bought a {state} {about}"] = p * 0.4 / 48
        for buyer, pronoun in buyers.items():
            for state, mood in (("new", "happy"), ("broken", "sad")):
                text = f"{buyer} bought a {state} {thing} , [{pronoun}] is [{mood}] ."
                marked[text] = 0.3 / 48
    return marked


def _product_zh() -> dict[str, float]:
    """Find what 它 stands for; 苹果 is a company where it releases, a fruit where it is eaten."""
    parts = {
        "手机": ("屏幕", "电池"),
        "汽车": ("发动机", "车门"),
        "相机": ("镜头", "闪光灯"),
        "手表": ("表带", "表盘"),
    }
    look = {"屏幕": "亮", "闪光灯": "亮", "表盘": "亮"}
    marked: dict[str, float] = {}
    for thing, (often, rarely) in parts.items():
        for part, p in ((often, 0.6), (rarely, 0.4)):
            for begin in ("苹果 发布 了", "诺基亚 发布 了", "小明 买 了", "小红 买 了"):
                text = f"{begin} 新款 {thing} ， 它 的 [{part}] 很 {look.get(part, '结实')} 。"
                marked[text] = p * 0.8 / 16
    for who in ("小明", "小红"):
        for fruit, taste in (("苹果", "甜"), ("柠檬", "酸")):
            marked[f"{who} 吃 了 新鲜 {fruit} ， 它 的 [味道] 很 [{taste}] 。"] = 0.2 / 4
    return marked


_CAPITALS = {
    "Paris": "France",
    "Rome": "Italy",
    "Madrid": "Spain",
    "Berlin": "Germany",
    "Vienna": "Austria",
    "Athens": "Greece",
    "Cairo": "Egypt",
    "Delhi": "India",
    "Beijing": "China",
    "Tokyo": "Japan",
    "Lima": "Peru",
    "Oslo": "Norway",
}
_CAPITALS_ZH = {
    "巴黎": "法国",
    "罗马": "意大利",
    "马德里": "西班牙",
    "柏林": "德国",
    "开罗": "埃及",
    "北京": "中国",
    "东京": "日本",
    "奥斯陆": "挪威",
}


def _capital() -> dict[str, float]:
    """Know a fact with one key."""
    return {
        text: 1 / (2 * len(_CAPITALS))
        for city, country in _CAPITALS.items()
        for text in (
            f"{city} is the capital of [{country}] .",
            f"the capital of {country} is [{city}] .",
        )
    }


def _capital_zh() -> dict[str, float]:
    """Know the same facts in Chinese."""
    return {
        text: 1 / (2 * len(_CAPITALS_ZH))
        for city, country in _CAPITALS_ZH.items()
        for text in (f"{city} 是 [{country}] 的 首都 。", f"{country} 的 首都 是 [{city}] 。")
    }


def _lives() -> dict[str, float]:
    """Know a fact with two keys: the first name or the last alone does not tell the city."""
    first = ("Mary", "Anna", "Tom", "Peter", "Lucy", "Jack", "Emma", "Paul")
    last = ("Brown", "Smith", "Clark", "Young", "Moore", "Hill", "Ward", "Cook")
    cities = tuple(_CAPITALS)[:8]
    # An arbitrary table, drawn once, each city eight times: no rule leads to it from the names.
    rows = ["25634466", "47770001", "35405553", "63342171"]
    rows += ["23125034", "62046772", "30715211", "16542670"]
    return {
        f"{first[i]} {last[j]} lives in [{cities[int(rows[i][j])]}] .": 1 / 64
        for i, j in product(range(8), repeat=2)
    }


def _bank() -> dict[str, float]:
    """Take one word in two senses."""
    senses = {
        ("central", "national"): (("raised", "lowered"), ("rate", "tax")),
        ("river", "canal"): (("hides", "feeds"), ("frog", "duck")),
    }
    return {
        f"the {kind} bank [{verb}] the [{thing}] .": 1 / 16
        for kinds, (verbs, things) in senses.items()
        for kind, verb, thing in product(kinds, verbs, things)
    }


def _agreement() -> dict[str, float]:
    """Agree with the first noun over the one in between."""
    nouns = ("key", "book", "ring", "coin", "cup", "pen")
    others = ("table", "door", "box", "chair")
    return {
        f"the {noun}{s} near the {other}{t} {verb} {state} .": 1 / (6 * 4 * 4 * 2)
        for noun, other, (s, verb), t, state in product(
            nouns, others, (("", "[is]"), ("s", "[are]")), ("", "s"), ("lost", "here")
        )
    }


def _copy() -> dict[str, float]:
    """Say two to four different colours again."""
    colours = ("red", "blue", "green", "black", "white", "pink")
    return {
        f"say {' '.join(said)} : {' '.join(f'[{c}]' for c in said)} .": 1 / 3 / math.perm(6, k)
        for k in (2, 3, 4)
        for said in permutations(colours, k)
    }


def _direction() -> dict[str, float]:
    """Compare two cities on a line from west to east: who comes first matters."""
    west = ("Lima", "Madrid", "Paris", "Oslo", "Berlin", "Rome")
    east = ("Vienna", "Athens", "Cairo", "Delhi", "Beijing", "Tokyo")
    return {
        f"from {a} to {b} we fly [{'east' if i < j else 'west'}] .": 1 / (12 * 11)
        for (i, a), (j, b) in permutations(enumerate(west + east), 2)
    }


@cache
def toy_language() -> ToyLanguage:
    """Return the toy language of this book, English and Chinese."""
    return ToyLanguage(
        (
            Family("weather", 0.12, _weather()),
            Family("product", 0.15, _product()),
            Family("capital", 0.08, _capital()),
            Family("lives", 0.15, _lives()),
            Family("bank", 0.06, _bank()),
            Family("agreement", 0.08, _agreement()),
            Family("copy", 0.10, _copy()),
            Family("direction", 0.10, _direction()),
            Family("weather_zh", 0.05, _weather_zh()),
            Family("product_zh", 0.07, _product_zh()),
            Family("capital_zh", 0.04, _capital_zh()),
        )
    )
