"""What holds for the pages: their links lead somewhere, their code is the code."""

import re
import tomllib
from pathlib import Path

import pytest

from support.pages import Page
from turndock_server.access import Role
from turndock_server.config import load
from turndock_server.services.permissions import ROLES

LINK = re.compile(r"\]\(([^)\s]+)\)")
CONFIGURED = ("write-a-backend", "write-a-behavior", "patterns")
EXAMPLES = {"write-a-backend": "diary.py", "write-a-behavior": "patterns/retry.py"}
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages(repository: Path) -> list[Page]:
    """Every page that people write or read."""
    return [Page(path) for path in (*repository.glob("*.md"), *repository.glob("docs/**/*.md"))]


def anchors(page: Page) -> set[str]:
    """What a link may name after the #, as hosts of repositories make it from headings."""
    titles = HEADING.findall(page.prose())
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_link_within_the_repository_leads_to_something(repository: Path) -> None:
    broken: list[str] = []
    for page in pages(repository):
        for link in LINK.findall(page.prose()):
            if "://" in link:
                continue
            path, _, anchor = link.partition("#")
            target = page.path.parent / path if path else page.path
            generated = target.name == "protocol.md"  # has anchors of its own
            if not target.exists() or (anchor and not generated and anchor not in anchors(Page(target))):
                broken.append(f"{page.path.relative_to(repository)}: {link}")
    assert broken == []


def test_every_page_is_in_the_index(repository: Path) -> None:
    docs = repository / "docs"
    linked = {(docs / link).resolve() for link in LINK.findall(Page(docs / "README.md").text)}
    missing = {path for path in docs.glob("**/*.md") if path.name != "README.md"} - linked
    assert missing == set()


@pytest.mark.parametrize(
    "name", ["README.md", "docs/guides/write-a-backend.md", "docs/guides/persistence.md"]
)
@pytest.mark.parametrize("name", ["README.md", *(f"docs/guides/{name}.md" for name in CONFIGURED)])
@pytest.mark.parametrize("name", ["README.md", "docs/guides/write-a-backend.md", "docs/guides/security.md"])
def test_every_configuration_on_a_page_is_accepted(
    repository: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [code for code in Page(repository / name).blocks("toml") if "project" not in tomllib.loads(code)]
    assert files
    for code in files:
        (tmp_path / "turndock.toml").write_text(code)
        assert load().offered_backends()


@pytest.mark.parametrize("guide", EXAMPLES)
def test_what_a_guide_shows_is_in_the_example(repository: Path, guide: str) -> None:
    example = (repository / "clients/python/turndock/examples" / EXAMPLES[guide]).read_text()
    shown = Page(repository / f"docs/guides/{guide}.md").blocks("python")
    assert len(shown) >= 4
    for code in shown:
        assert code in example


def test_the_guide_to_security_names_every_call_beside_its_role(repository: Path) -> None:
    text = (repository / "docs/guides/security.md").read_text()
    rows = {role: re.search(rf"^\| `{role}` \| (.+) \|$", text, re.MULTILINE) for role in Role if role}
    for service, calls in ROLES.items():
        for role, names in calls.items():
            row = rows[role]
            assert row is not None
            said = dict(re.findall(r"`(\w+)`: ([\w, ]+)", row[1])).get(service.rpartition(".")[2])
            if said is None:
                assert "reflection" in service
            elif said != "everything":
                assert set(names) <= set(said.split(", "))
