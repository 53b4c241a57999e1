"""Problems as tests ask for them: code and key, "option.range plan[2].ways"; their words stand
in messages.py alone."""
from messages import check


def problems(lines):
    """Those among a call's JSON lines, in order."""
    errors = [line for line in lines if line["kind"] == "error"]
    for line in errors:
        check(line)
    return [f'{line["code"]} {line["key"]}'.strip() for line in errors]
