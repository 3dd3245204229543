import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.latent_fill import latent_fill
from kvproof.kernels.sparse_latent import sparse_latent

SLOTS = (5, -1, 0)


def arguments():
    columns = torch.randn(3, 576, device=DEVICE)
    pages = torch.full((2, 4, 656), 0xA5, dtype=torch.uint8, device=DEVICE)
    slots = torch.tensor(SLOTS, device=DEVICE)
    return {"latent": columns[:, :512], "rope": columns[:, 512:], "pages": pages, "slots": slots}


def test_filled_rows_are_what_attention_reads():
    """One query sees one token: the answer is its values, to the step of FP8."""
    given = arguments()
    latent_fill(**given, check_contents=True)
    q = torch.ones(1, 1, 576, dtype=torch.bfloat16, device=DEVICE)
    out = torch.empty(1, 1, 512, dtype=torch.bfloat16, device=DEVICE)
    for token, slot in enumerate(SLOTS):
        chosen = torch.tensor([[slot]], dtype=torch.int32, device=DEVICE)
        sparse_latent(q, given["pages"], chosen, out=out, scale=1.0)
        wanted = given["latent"][token] if slot >= 0 else torch.zeros(512, device=DEVICE)
        assert (out[0, 0] - wanted).abs().max() <= 0.07 * wanted.abs().max()


def test_no_tokens_are_no_launch():
    given = arguments()
    before = given["pages"].clone()
    latent_fill(**{**given, **{name: given[name][:0] for name in ("latent", "rope", "slots")}})
    assert torch.equal(given["pages"], before)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("latent", lambda latent: latent[:, 1:], "latent has shape"),
        ("latent", lambda latent: latent.mT.contiguous().mT, "latent has strides"),
        ("rope", lambda rope: rope.double(), r"rope is torch\.float64"),
        ("slots", lambda slots: slots[1:], "slots has shape"),
        ("slots", lambda slots: slots + 3, "slots holds ids 2 to 8, expected -1 to 7"),
        ("pages", lambda pages: pages[..., 1:], "pages has shape"),
        ("pages", lambda pages: pages[:, ::2], "the bytes of a page must be contiguous"),
        ("pages", lambda pages: pages.view(-1)[2 : 2 + 656].view(1, 1, 656), "multiples of 4"),
    ],
)
def test_what_does_not_fit_is_refused(name, change, words):
    given = arguments()
    with pytest.raises(ArgumentError, match=words):
        latent_fill(**{**given, name: change(given[name])}, check_contents=True)
