"""An attack only while an audit by an honest validator is unlikely."""

from pathlib import Path

import torch

from tests.workshop.attacks.gradient.forging import forger, rows
from troth.workshop.simulation import Scenario


def lies(honest: int, colluders: int, spec: str = "unwatched") -> bool:
    own_BD = rows("own", colluders)
    return not torch.equal(forger(spec, members=colluders)(own_BD, rows("honest", honest)), own_BD)


def test_the_chance_rises_as_liars_are_banned_until_they_lie_low() -> None:
    """m/(n − m)·h/n with one of n validating: 9 honest among n = 16, 14, 13 give 0.0375, 0.0495, 0.0577."""
    assert lies(9, 6)
    assert lies(9, 4)
    assert not lies(9, 3)
    assert lies(9, 3, "unwatched:chance=0.058")
    assert not lies(9, 6, "unwatched:validators=2")


def test_it_remembers_honest_peers_that_sit_a_step_out() -> None:
    """Of 9 honest, one validates: h is 9 all the same, once it was seen."""
    forge = forger("unwatched:chance=0.0501", members=5)
    own_BD = rows("own", 5)
    assert not torch.equal(forge(own_BD, rows("honest", 8)), own_BD)
    assert not torch.equal(forge(own_BD, rows("honest", 9)), own_BD)
    assert not torch.equal(forge(own_BD, rows("honest", 8)), own_BD)
    strict = forger("unwatched:chance=0.045", members=5)
    assert not torch.equal(strict(own_BD, rows("honest", 8)), own_BD)  # 1/13·8/14 = 0.044
    strict(own_BD, rows("honest", 9))
    assert torch.equal(strict(own_BD, rows("honest", 8)), own_BD)  # 1/13·9/14 = 0.049


def test_the_attack_inside_is_any_that_forges() -> None:
    own_BD, honest_HD = rows("own", 6), rows("honest", 9)
    for spec in ("bit-flip", "sign-flip:scale=3", "alie", "tailored", "mimic", "rop"):
        inside = forger(spec, members=6)(own_BD, honest_HD)
        assert torch.equal(forger(f"unwatched:attack={spec}", members=6)(own_BD, honest_HD), inside)


def test_among_many_other_liars_it_counts_them() -> None:
    own_BD = rows("own", 6)
    sent_BD = forger("unwatched + zero", members=6)(own_BD, rows("honest", 9))
    assert not torch.equal(sent_BD[::2], own_BD[::2])


def test_a_file_inside_it_is_part_of_the_configuration(tmp_path: Path) -> None:
    """Else a changed file would go by the results of the old one."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from troth.attacks import GradientAttack\n\n"
        "class Mine(GradientAttack):\n    def forge(self, own, honest):\n        return -own\n"
    )
    scenario = Scenario(
        task="quadratic", peers=7, byzantine=2, attack=f"zero + unwatched:attack={file}", attack_start=0
    )
    assert list(scenario.config()["files"]) == [str(file)]
