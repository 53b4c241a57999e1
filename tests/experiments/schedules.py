"""Random orders of a pipeline's works as text, each of which can be carried out: rows of a random
order of all works in which each stands behind what it needs. Neighbours may be joined to groups."""


def needs(work, last):
    """What a work waits for: (letter, virtual stage, microbatch)."""
    letter, v, m = work
    if letter == "F":
        return [("F", v - 1, m)] if v > 0 else []
    if letter == "W":
        return [("I", v, m)]
    return [("F", v, m)] + ([("B", v + 1, m), ("I", v + 1, m)] if v < last else [])


def works_of(chance, vstages, microbatches, split):
    """A random order of all works; `split` is the share of backwards that are I and W."""
    parted = {(v, m) for v in range(vstages) for m in range(microbatches) if chance.random() < split}
    open_works = [("F", v, m) for v in range(vstages) for m in range(microbatches)]
    for v in range(vstages):
        for m in range(microbatches):
            open_works += [("I", v, m), ("W", v, m)] if (v, m) in parted else [("B", v, m)]
    all_works, done, order = set(open_works), set(), []
    eager = chance.random()  # how often backwards go first
    while open_works:
        ready = [work for work in open_works
                 if all(need in done for need in needs(work, vstages - 1) if need in all_works)]
        back = [work for work in ready if work[0] != "F"]
        work = chance.choice(back if back and chance.random() < eager else ready)
        open_works.remove(work)
        done.add(work)
        order.append(work)
    return order


def comes_to_an_end(rows, last):
    """Whether rows of groups can be carried out: a group begins when all of its works can."""
    begun, done = [0] * len(rows), set()
    all_works = {work for row in rows for group in row for work in group}
    moved = True
    while moved:
        moved = False
        for stage, row in enumerate(rows):
            while begun[stage] < len(row):
                group = row[begun[stage]]
                if any(need in all_works and need not in done for work in group for need in needs(work, last)):
                    break
                done.update(group)
                begun[stage] += 1
                moved = True
    return all(n == len(row) for n, row in zip(begun, rows))


def joined(chance, rows, last, tries):
    """Some neighbours in one group, where the whole can still be carried out."""
    for _ in range(tries):
        stage = chance.randrange(len(rows))
        if len(rows[stage]) < 2:
            continue
        n = chance.randrange(len(rows[stage]) - 1)
        row = rows[stage]
        group = row[n] + row[n + 1]
        if len(group) > 3:
            continue
        other = [*rows[:stage], [*row[:n], group, *row[n + 2:]], *rows[stage + 1:]]
        if comes_to_an_end(other, last):
            rows = other
    return rows


def random_schedule(chance, stages, chunks, microbatches, groups):
    """A row of text for each stage, and whether works are joined in it."""
    vstages = stages * chunks
    v_shaped = chunks == 2 and chance.random() < 0.5
    home = [v if v < stages else vstages - 1 - v for v in range(vstages)] if v_shaped else [v % stages for v in range(vstages)]
    rows = [[] for _ in range(stages)]
    for work in works_of(chance, vstages, microbatches, chance.choice([0, 0, 0.5, 1])):
        rows[home[work[1]]].append([work])
    if groups:
        rows = joined(chance, rows, vstages - 1, 2 * microbatches * vstages)
    text = [" ".join("+".join(f"{v}{letter}{m}" for letter, v, m in group) for group in row) for row in rows]
    return text, any("+" in row for row in text)
