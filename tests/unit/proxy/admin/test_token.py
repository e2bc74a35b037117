from pathlib import Path

import pytest

from baton.proxy.admin.token import AdminToken, AdminTokenError, read_admin_token

TOKEN = "0123456789abcdef"


def test_a_token_is_read_without_the_white_space_around_it_and_never_shown(tmp_path: Path) -> None:
    """Editors end a file with a new line; not even a traceback has the token."""
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")

    token = read_admin_token(file)

    assert token.opens(f"Bearer {TOKEN}")
    assert TOKEN not in repr(token)


@pytest.mark.parametrize("header", ["", TOKEN, f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer é"])
def test_nothing_else_opens(header: str) -> None:
    assert not AdminToken(TOKEN).opens(header)


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 20, None])
def test_an_unusable_file_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(AdminTokenError, match="admin token"):
        read_admin_token(file)
