"""The header's badge and the status line: recorded or live, modelled or measured, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass

from macs.engine.base import Progress
from macs.view.ledger import settings_text
from macs.view.markup import esc, num
from macs.view.shown import Shown
from macs.view.words import Words


@dataclass(frozen=True)
class Status:
    """What the status line says beyond the run on the page."""

    kind: str = "ready"  # "ready", "running", "note" or "error"
    text: str = ""  # plain
    share: float = 0.0  # of a run that is done
    field: str = ""  # element id of the field that caused an error; page.js puts the text there


READY = Status()
NO_RUN = ("set-", "open-trace")  # fields whose errors have stopped no run


def header(shown: Shown, words: Words, status: Status = READY) -> str:
    """Return title, badge, and the switches of language and theme."""
    other = "zh" if words.lang == "en" else "en"
    return (
        f'<header data-lang="{words.lang}"><h1>{esc(words("title"))}</h1><span class="tag">{esc(words("tagline"))}</span><span class="sp"></span>'
        f'<span class="badge">{badge(shown, words, status)}</span>'
        f'<button type="button" class="tool" data-send="language" data-value="{other}" lang="{other}" aria-label="{esc(words("lang_other_label"))}">{esc(words("lang_other"))}</button>'
        f'<button type="button" class="tool" data-theme-switch aria-label="{esc(words("theme_label"))}">'
        f'<span class="in-light">{esc(words("theme_dark"))}</span><span class="in-dark">{esc(words("theme_light"))}</span></button></header>'
    )


def badge(shown: Shown, words: Words, status: Status) -> str:
    """Return the badge: where the answers come from, and whether times are modelled or measured."""
    if status.kind == "error" and not status.field.startswith(NO_RUN):
        return words.html("bd_error")
    trace = shown.policy
    measured = shown.measured and not shown.stale
    place = words(f"bd_place_{'measured' if measured else 'modelled'}", n=trace.num_experts, g=trace.ep_size)
    key = "running" if status.kind == "running" else "stale" if shown.stale else "noimage" if _live_text(shown) else shown.source
    return words.html(f"bd_{key}", model=model_name(shown), place=place)


def _live_text(shown: Shown) -> bool:
    return shown.source == "live" and not shown.policy.images


def model_name(shown: Shown) -> str:
    """Return the model's name without the folders it lies in, and its size where the trace holds it."""
    about = shown.run.policy.about
    name = str(about.get("model", "?")).rstrip("/\\").replace("\\", "/").split("/")[-1]
    size = about.get("parameters")
    return f"{name} {size / 1e6:.1f} M" if isinstance(size, (int, float)) and size < 1e9 else f"{name} {size / 1e9:.1f} B" if size else name


def status_line(shown: Shown, words: Words, status: Status = READY) -> str:
    """Return the line under Run: progress, an error in one sentence, or what the page shows."""
    text = words("st_field") if status.field else status.text or _resting(shown, words)
    fault = f' data-field="{esc(status.field)}" data-text="{esc(status.text)}"' if status.field else ""
    bar = f'<span class="prog"><i style="width:{100 * status.share:.0f}%"></i></span>' if status.kind == "running" else ""
    stale = " stale" if shown.stale and status.kind == "ready" else ""
    notices = "".join(f'<p class="notice">{esc(words.sentence(notice))}</p>' for notice in shown.notices)
    return f'<p class="status {status.kind}{stale}"{fault}>{esc(text)}{bar}</p>{notices}'


def _resting(shown: Shown, words: Words) -> str:
    if shown.stale and shown.answered("policy"):
        return words("st_equal", g=f"{shown.now.same_time.policy.gamma:.2f}", base=words.policy(shown.now.same_time.policy.preset))
    if shown.stale:
        return words("st_stale", settings=settings_text(shown.run.policy))
    if not shown.scored:
        return words("st_imported", source=shown.policy.about.get("source", "?"))
    if shown.source != "live":
        return words(f"st_{shown.source}")
    place = words(f"st_place_{'measured' if shown.measured else 'modelled'}", g=shown.policy.ep_size)
    text = words("st_live", s=num(shown.seconds, 1), place=place)
    return text if shown.policy.images else f"{words('st_noimage')} {text}"


def progress(step: Progress, words: Words) -> Status:
    """Return the status of a run under way."""
    values = {"policy": words.policy(step.policy or "custom"), "phase": words(f"phase_{step.phase}"), "i": step.policy_index + 1, "k": step.policies}
    inside = {"encode": 0.0, "decode": 0.8}.get(step.phase, 0.8 * (step.layer + 1) / max(step.layers, 1))
    share = (step.policy_index + inside) / max(step.policies, 1)
    if step.phase != "prefill" or not step.layers:
        return Status("running", words("st_step", **values), share)
    return Status("running", words("st_running", l=step.layer + 1, n=step.layers, **values), share)
