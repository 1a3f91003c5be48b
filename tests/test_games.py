"""Game names in every spelling, and the scores that normalize them."""

import pytest

from voidrl.envs.suites.atari import GAMES, GAMES_26, baseline, find_game, human_normalized, paper_table
from voidrl.errors import ConfigError, UnknownNameError

TITLES = {
    "Ms. Pac-Man": "ms_pacman",
    "H.E.R.O.": "hero",
    "Q*bert": "qbert",
    "Montezuma's Revenge": "montezuma_revenge",
    "Yars' Revenge": "yars_revenge",
    "River Raid": "riverraid",
    "Kung-Fu Master": "kung_fu_master",
    "Up'n Down": "up_n_down",
    "Up and Down": "up_n_down",
    "James Bond": "jamesbond",
    "James Bond 007": "jamesbond",
    "Robot Tank": "robotank",
    "Pitfall!": "pitfall",
    "Stargunner": "star_gunner",
    "Beamrider": "beam_rider",
    "Tutankhamun": "tutankham",
    "BattleZone": "battle_zone",  # so printed in the table of 26 games
    "ChopperCommand": "chopper_command",
}


def test_titles():
    assert {title: find_game(title) for title in TITLES} == TITLES


@pytest.mark.parametrize("game", GAMES)
def test_ids_of_voidrl_and_of_all_years_of_gymnasium(game):
    camel = "".join(word.capitalize() for word in game.split("_"))
    names = [game, game.upper(), f" {camel} ", f"ALE/{camel}-v5", f"ale_py:ALE/{camel}-v5", f"atari/{game}"]
    names += [f"ALE/{camel}-ram-v5", f"{camel}-ramNoFrameskip-v4"]
    names += [f"{camel}{year}" for year in ("", "-v0", "NoFrameskip-v4", "Deterministic-v4")]
    assert {name: find_game(name) for name in names} == dict.fromkeys(names, game)


def test_everything_that_ale_has():
    roms = pytest.importorskip("ale_py.roms").get_all_rom_ids()
    assert set(GAMES) <= set(roms)
    assert all(find_game(rom, roms) == rom for rom in roms)
    assert all(find_game(title, roms) == game for title, game in TITLES.items())


def test_a_near_name_is_an_error_that_names_the_nearest():
    with pytest.raises(UnknownNameError, match="'MsPacmn'; did you mean 'ms_pacman'"):
        find_game("ALE/MsPacmn-v5")
    with pytest.raises(UnknownNameError, match=r"did you mean 'ms_pacman'.*57 games.*human score"):
        find_game("pacman")  # a game of ALE, but none of the 57: never taken for Ms. Pac-Man
    with pytest.raises(UnknownNameError, match="did you mean 'pitfall'"):
        find_game("Pitfall II")
    for nothing in ("", "-v5", "/", "★"):
        with pytest.raises(UnknownNameError, match="known: alien"):
            find_game(nothing)


def test_normalized_scores_by_hand():
    assert baseline("Breakout") == (1.7, 30.5)
    assert human_normalized("breakout", 16.1) == pytest.approx(0.5)
    assert human_normalized("ALE/Pong-v5", 14.6) == 1.0
    assert human_normalized("double_dunk", -18.6) == 0.0
    assert human_normalized("Skiing", -29859.3) == pytest.approx(-1.0)  # worse than random


def test_the_baselines_are_not_the_papers_misprints():
    misprinted = {
        game
        for game, row in paper_table(57).items()
        if (row["random_printed"], row["human_printed"]) != baseline(game)
    }
    assert misprinted == {
        "asteroids", "beam_rider", "centipede", "crazy_climber", "demon_attack", "video_pinball"
    }  # fmt: skip
    assert baseline("demon_attack") == (152.1, 1971.0)


def test_the_papers_tables_are_as_printed():
    small, large = paper_table(26), paper_table(57)
    assert (len(GAMES), len(GAMES_26)) == (57, 26)
    assert tuple(sorted(small)) == GAMES_26
    assert tuple(sorted(large)) == GAMES
    assert small["assault"]["visr"] == 12091.1
    assert large["assault"]["visr"] == 1209.1
    methods = ["random_printed", "human_printed", "simple", "der", "curl", "drq", "spr", "visr", "apt"]
    assert all(list(row) == methods for row in small.values())
    differing = {game for game in GAMES_26 if small[game]["apt"] != large[game]["apt"]}
    assert differing == {"demon_attack", "gopher", "ms_pacman"}
    with pytest.raises(ConfigError, match="no table of 49 games"):
        paper_table(49)
