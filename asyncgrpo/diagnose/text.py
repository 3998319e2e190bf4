"""A diagnosis as text for a terminal, and as JSON for machines."""

from dataclasses import asdict

import msgspec
import yaml

from asyncgrpo.diagnose.findings import Change, Diagnosis


def to_text(diagnosis: Diagnosis) -> str:
    """Verdict, evidence, cost, changes, sides ruled out: a line each."""
    lines = [f"{diagnosis.verdict}: {diagnosis.means}"]
    if diagnosis.missing:
        lines += ["", "missing", *(f"  {what}" for what in diagnosis.missing)]
        return "\n".join(lines)
    span = f"steps {diagnosis.first_step} to {diagnosis.last_step}"
    lines.append(f"confidence {diagnosis.confidence}; {span}, {diagnosis.step_s or 0.0:.2f} s each")
    lines += ["", "evidence", *(f"  {evidence}" for evidence in diagnosis.evidence)]
    if diagnosis.lost_s_per_step:
        run = f"{diagnosis.lost_s_per_run:.0f} s over the run"
        lines += ["", f"lost  {diagnosis.lost_s_per_step:.2f} s per step, {run}"]
    for change in diagnosis.changes:
        lines += ["", *_change_lines(change)]
    if not diagnosis.changes:
        lines += ["", "nothing to change"]
    if diagnosis.ruled_out:
        lines += ["", "ruled out", *(f"  {what}" for what in diagnosis.ruled_out)]
    return "\n".join(lines)


def to_json(diagnosis: Diagnosis) -> str:
    """The diagnosis as one JSON object, with each patch as a mapping and as YAML."""
    document = asdict(diagnosis)
    document["changes"] = [
        {**asdict(change), "patch_yaml": patch_yaml(change)} for change in diagnosis.changes
    ]
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def patch_yaml(change: Change) -> str:
    """The change as YAML to merge into the recipe; empty where no key makes it."""
    return yaml.safe_dump(dict(change.patch), sort_keys=False) if change.patch else ""


def _change_lines(change: Change) -> list[str]:
    lines = [
        f"change  {change.limit} (up to {change.gain_s_per_step:.2f} s per step)",
        f"  {change.says}",
    ]
    return lines + [f"    {line}" for line in patch_yaml(change).splitlines()]
