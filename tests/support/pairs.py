"""Covering arrays: few cases in which every two values that can stand together do (Cohen et al.
1997, "The AETG system"). Deterministic."""

import itertools
import random


def pairs_of(case):
    return {frozenset(two) for two in itertools.combinations(case.items(), 2)}


def cover(factors, allowed, seed=1, tries=10):
    """Of `factors`, name -> values: cases, name -> value, all of them `allowed`, and the pairs that no allowed case has."""
    chance = random.Random(seed)
    names = list(factors)
    open_pairs = {frozenset([(a, v), (b, w)]): None  # in order
                  for a, b in itertools.combinations(names, 2)
                  for v, w in itertools.product(factors[a], factors[b])}

    plain = {name: values[0] for name, values in factors.items()}

    def filled(fixed):
        """Each further value, if it is allowed beside those before it, stands with most of them for the first time."""
        case = dict(fixed)
        for name in chance.sample(names, len(names)):
            if name in case:
                continue
            def worth(value):
                news = sum(frozenset([(name, value), old]) in open_pairs for old in case.items())
                return allowed(plain | case | {name: value}), news, chance.random()
            case[name] = max(factors[name], key=worth)
        return {name: case[name] for name in names}

    def any_allowed(fixed):
        others = ({name: chance.choice(values) for name, values in factors.items()} | fixed for _ in range(500))
        return next((case for case in [plain | fixed, *others] if allowed(case)), None)

    cases, impossible = [], []
    while open_pairs:
        first = next(iter(open_pairs))
        candidates = [case for case in (filled(dict(first)) for _ in range(tries)) if allowed(case)]
        best = max(candidates, key=lambda case: len(pairs_of(case) & open_pairs.keys()), default=None) or any_allowed(dict(first))
        if best is None:
            impossible.append(first)
            del open_pairs[first]
            continue
        cases.append(best)
        for pair in pairs_of(best):
            open_pairs.pop(pair, None)
    return cases, impossible
