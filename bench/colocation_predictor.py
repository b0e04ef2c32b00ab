"""Compare methods that predict the speeds of unmeasured pairs.

A table of pairs is split into five random folds. `pairs`: the pairs of a fold are left out, in both
directions. `applications`: all pairs of one application and input are left out; only its name, its size and
its speed when running alone are known. `families`: like applications, but for all inputs of an
application. `met N`: like applications, but each was measured with N random others. `bounded N`: like pairs,
with a fit to N of the speeds, chosen by the predictor, at random, or in order. The mean absolute error is
computed over speeds relative to running alone, excluding pairs that cannot run together. No method learns
from targets of a fold, or from features derived from targets.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small matrices, busy machines
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

from bench.arguments import input_errors, number
from bench.colocation_tables import generated
from slurm_gpu.colocation.profiles.traits import Traits, likeness, traits_of_table
from slurm_gpu.colocation.speeds.low_rank import truncated
from slurm_gpu.colocation.speeds.predictor import predict
from slurm_gpu.colocation.tables.read import read_table
from slurm_gpu.errors import InputError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Method = Callable[[Sequence[Traits], Floats], Floats]
"""A method that returns all speeds, (n, n), given the known speeds, (n, n) with NaN elsewhere."""

FOLDS = 5
MET = (1, 2, 4)
BOUNDS = (120, 250, 400)
_SLOWEST = 0.02
_TRAITS = 8
"""The first columns of the features."""
CONFIDENCES = (0.5, 0.8, 0.95)
GOALS = {"pairs": 0.035, "applications": 0.065}


def main() -> None:
    args = arguments()
    if args.generated:
        compare(args.generated)
        return
    path = args.data / "throughputs_v100.json" if args.data.is_dir() else args.data
    with input_errors():
        table = read_table(path, args.gpu_model)
        if len(table.names) < FOLDS:
            raise InputError(
                str(path), 0, 0, f"has {len(table.names)} applications, but {FOLDS} folds require {FOLDS}"
            )
    traits, speeds = traits_of_table(table), table.table().speeds
    there = np.nan_to_num(speeds) > 0
    print(
        f"{table.gpu_model}: {len(traits)} applications, {there.sum()} speeds, {len(table.groups)} groups\n"
    )
    report: dict[str, object] = {"gpu_model": table.gpu_model, "folds": FOLDS, "seeds": args.seeds}
    methods = {NAME: METHODS[NAME]} if args.ours else METHODS
    kinds = ["pairs", "applications", "families"]
    if len({one.family for one in traits}) < 2:
        kinds.remove("families")
        print("families: not measured, since the table has only one\n")
    for kind in kinds:
        report[kind] = {
            name: evaluate(kind, name, method, traits, speeds, args.seeds) for name, method in methods.items()
        }
        print()
    for n in MET:
        kind = f"met {n}"
        report[kind] = {NAME: evaluate(kind, NAME, METHODS[NAME], traits, speeds, args.seeds)}
    report["bounded"] = {
        f"{name} {most}": evaluate(
            "pairs", f"{name} {most}", partial(method, most), traits, speeds, args.seeds
        )
        for most in BOUNDS
        for name, method in BOUNDED.items()
    }
    print("\nfraction of omitted speeds at or above their lower bound")
    report["covered"] = {
        kind: covered(kind, traits, speeds, args.seeds) for kind in ("pairs", "applications")
    }
    begun = time.process_time()
    predict(traits, speeds)
    report["fit_s"] = time.process_time() - begun
    print(f"\none fit to all: {report['fit_s']:.1f} s of processor time")
    if args.json:
        print(json.dumps(report))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--data",
        type=Path,
        help="a table of pairs in CSV or JSON (docs/colocation.md), or a folder with throughputs_v100.json",
    )
    source.add_argument(
        "--generated",
        nargs="+",
        type=seed_and_size,
        metavar="SEED[:N]",
        help="tables of bench/colocation_tables.py, of N applications or a random number",
    )
    parser.add_argument("--gpu-model", help="GPU model, if the table has several")
    parser.add_argument("--seeds", type=number(1), default=1, help="number of divisions into folds")
    parser.add_argument("--ours", action="store_true", help="only the method that slurm-gpu uses")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    return parser.parse_args()


def seed_and_size(text: str) -> tuple[int, int | None]:
    """Parse SEED or SEED:N."""
    seed, colon, n = text.partition(":")
    return number(0)(seed), number(FOLDS)(n) if colon else None


def compare(tables: Sequence[tuple[int, int | None]]) -> None:
    """Print the errors of simple methods and ours for the pairs of generated tables."""
    names = (*SIMPLE, NAME)
    print(f"{'table':10}{''.join(f'{name:>20}' for name in ('applications', *names))}   best")
    for seed, n in tables:
        table = generated(seed, n)
        traits, speeds = traits_of_table(table), table.table().speeds
        errors = {
            name: float(
                np.mean(
                    [
                        error(METHODS[name](traits, seen), speeds, asked)
                        for seen, asked in folds("pairs", traits, speeds, 0)
                    ]
                )
            )
            for name in names
        }
        cells = "".join(f"{errors[name]:20.4f}" for name in names)
        text = str(seed) if n is None else f"{seed}:{n}"
        print(f"{text:10}{len(traits):20}{cells}   {min(names, key=errors.__getitem__)}", flush=True)


def evaluate(
    kind: str, name: str, method: Method, traits: Sequence[Traits], speeds: Floats, seeds: int
) -> dict[str, object]:
    """Print and return the error of each fold of the first division, and the mean of all divisions."""
    errors = [
        [error(method(traits, seen), speeds, asked) for seen, asked in folds(kind, traits, speeds, seed)]
        for seed in range(seeds)
    ]
    mean = float(np.mean(errors))
    goal = GOALS.get(kind)
    verdict = ""
    if goal is not None and name == NAME:
        verdict = f"  goal on Gavel's V100 {goal}: {'met' if mean <= goal else 'not met'}"
    print(
        f"{kind:13} {name:22} {mean:.4f}   {' '.join(f'{one:.3f}' for one in errors[0])}{verdict}", flush=True
    )
    return {"mae": mean, "folds": errors[0], "divisions": [float(np.mean(one)) for one in errors]}


def error(found: Floats, speeds: Floats, asked: Bools) -> float:
    return float(np.abs(np.clip(found, _SLOWEST, 1) - speeds)[asked].mean())


def folds(kind: str, traits: Sequence[Traits], speeds: Floats, seed: int) -> Iterator[tuple[Floats, Bools]]:
    """Yield the training pairs and the pairs to predict of each fold that has any."""
    rng, n = np.random.default_rng(seed), len(speeds)
    there = np.nan_to_num(speeds) > 0
    if kind == "pairs":
        pairs = np.argwhere(np.triu(there))
        fold = rng.permutation(len(pairs)) % FOLDS
        for k in range(FOLDS):
            asked = np.zeros((n, n), dtype=bool)
            asked[tuple(pairs[fold == k].T)] = True
            yield known(speeds, there, asked | asked.T)
        return
    groups = [one.family for one in traits] if kind == "families" else list(range(n))
    names = list(dict.fromkeys(groups))
    of = dict(zip(names, rng.permutation(len(names)) % FOLDS, strict=True))
    fold = np.array([of[group] for group in groups])
    for k in range(FOLDS):
        out = fold == k
        asked = out[:, None] | out
        if kind.startswith("met "):
            asked &= ~some_known(out, there, int(kind.removeprefix("met ")), rng)
        if (asked & there).any():
            yield known(speeds, there, asked)


def known(speeds: Floats, there: Bools, asked: Bools) -> tuple[Floats, Bools]:
    return np.where(asked | ~there, np.nan, speeds), asked & there


def some_known(out: Bools, there: Bools, n: int, rng: np.random.Generator) -> Bools:
    """Return pairs of each left-out application with some applications that are not left out."""
    found = np.zeros_like(there)
    for one in np.flatnonzero(out):
        others = np.flatnonzero(there[one] & ~out)
        for other in rng.permutation(others)[:n]:
            found[one, other] = found[other, one] = True
    return found


def covered(kind: str, traits: Sequence[Traits], speeds: Floats, seeds: int) -> dict[str, dict[str, object]]:
    """Return the share of speeds at or above their lower bound, by confidence."""
    found = [
        (predict(traits, seen), asked)
        for seed in range(seeds)
        for seen, asked in folds(kind, traits, speeds, seed)
    ]
    report: dict[str, dict[str, object]] = {}
    for confidence in CONFIDENCES:
        parts = [float((speeds >= one.lower(confidence))[asked].mean()) for one, asked in found]
        report[str(confidence)] = {"mean": float(np.mean(parts)), "folds": parts[:FOLDS]}
        print(
            f"{kind:13} {confidence:<22.0%} {np.mean(parts):.3f}    "
            f"{' '.join(f'{one:.3f}' for one in parts[:FOLDS])}",
            flush=True,
        )
    return report


def constant(traits: Sequence[Traits], seen: Floats) -> Floats:
    return np.full_like(seen, np.nanmedian(seen))


def additive(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Predict the mean plus a sensitivity of one plus an effect of the other, by ridge regression."""
    there, level = ~np.isnan(seen), np.nanmean(seen)
    rows, columns = np.zeros(len(seen)), np.zeros(len(seen))
    for _ in range(50):
        rows = np.where(there, seen - level - columns, 0).sum(axis=1) / (there.sum(axis=1) + 1)
        columns = np.where(there, seen - level - rows[:, None], 0).sum(axis=0) / (there.sum(axis=0) + 1)
    return np.asarray(level + rows[:, None] + columns)


def truncated_svd(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Complete by iterated truncated singular value decompositions; `validated` selects the rank."""
    return truncated(seen, validated(truncated, (1, 2, 3, 4, 6, 8), seen))


def nearest_neighbours(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Predict the mean of the applications with the most similar speeds; `validated` selects their number."""
    return neighbours(seen, validated(neighbours, (1, 2, 3, 5, 8), seen))


def neighbours(seen: Floats, k: int) -> Floats:
    """Return the mean, weighted by inverse distance, of the k applications with the most similar speeds."""
    there = ~np.isnan(seen)
    speed = np.where(there, seen, 0)
    both = there.astype(float) @ there.T
    squares = speed**2 @ there.T + there @ (speed**2).T - 2 * speed @ speed.T
    distance = np.where(both > 0, squares / np.maximum(both, 1), np.inf)
    np.fill_diagonal(distance, np.inf)
    found = additive((), seen)
    for other in range(len(seen)):
        far = np.where(there[:, other], distance, np.inf)
        near = np.argsort(far, axis=1)[:, :k]
        weight = 1 / (np.take_along_axis(far, near, 1) + 1e-4)
        total = weight.sum(axis=1)
        known = total > 0
        found[known, other] = (weight * speed[near, other]).sum(axis=1)[known] / total[known]
    return found


def validated(method: Callable[[Floats, int], Floats], options: Sequence[int], seen: Floats) -> int:
    """Return the option with the least error for a tenth of the known speeds, hidden from the method."""
    measured = np.flatnonzero(~np.isnan(seen))
    out = np.random.default_rng(0).permutation(measured)[: max(len(measured) // 10, 1)]
    less = seen.copy()
    less.ravel()[out] = np.nan
    wanted = seen.ravel()[out]
    return min(
        options,
        key=lambda one: float(np.abs(np.clip(method(less, one), _SLOWEST, 1).ravel()[out] - wanted).mean()),
    )


def nearest(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Predict the speed of the known pair with the same families, if any, and the nearest sizes."""
    like = likeness(traits)
    far = like.octaves + 100 * (1 - like.same_family)
    at = np.argwhere(~np.isnan(seen))
    distance = far[:, at[:, 0]][:, None, :] + far[:, at[:, 1]][None]
    return np.asarray(seen[tuple(at[distance.argmin(axis=2)].transpose(2, 0, 1))])


def features(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Return (n·n, columns) features of each pair: names, sizes, times alone, and both in all other pairs."""
    like, n = likeness(traits), len(traits)
    families = {family: at for at, family in enumerate(dict.fromkeys(one.family for one in traits))}
    family = np.array([families[one.family] for one in traits])
    size = np.array([np.log2(one.size) if one.size else np.nan for one in traits])
    alone = np.array([one.uses[0] if one.uses and one.uses[0] is not None else np.nan for one in traits])
    near = np.argsort(like.octaves + 100 * (1 - like.same_family) + 1000 * np.eye(n), axis=1)[:, :2]
    rows = []
    for one in range(n):
        for other in range(n):
            rest = seen.copy()
            rest[one, other] = rest[other, one] = np.nan
            kin, their = family == family[one], family == family[other]
            rows.append(
                [
                    family[one],
                    family[other],
                    size[one],
                    size[other],
                    alone[one],
                    alone[other],
                    alone[one] - alone[other],
                    one == other,
                    mean(rest[one]),
                    mean(rest[:, other]),
                    mean(rest[other]),
                    mean(rest[:, one]),
                    mean(rest[one, their]),
                    mean(rest[kin, other]),
                    mean(rest[np.ix_(kin, their)]),
                    mean(rest[other, kin]),
                    mean(rest[their, one]),
                    rest[one, one],
                    rest[other, other],
                    *rest[one, near[other]],
                    *rest[near[one], other],
                    *rest[other, near[one]],
                    *rest[near[other], one],
                ]
            )
    return np.array(rows, dtype=float)


def mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def boosting(traits: Sequence[Traits], seen: Floats) -> Floats:
    given, there = features(traits, seen), ~np.isnan(seen).ravel()
    return np.asarray(boosted(given[there], seen.ravel()[there]).predict(given).reshape(seen.shape))


def boosted(given: Floats, wanted: Floats) -> HistGradientBoostingRegressor:
    model = HistGradientBoostingRegressor(
        loss="absolute_error",
        max_iter=200,
        learning_rate=0.06,
        max_leaf_nodes=8,
        min_samples_leaf=5,
        random_state=0,
    )
    # Scikit-learn fails on columns without a value, as in tables without input sizes or standalone speeds.
    return model.fit(np.where(np.isnan(given).all(axis=0), 0.0, given), wanted)


def by_traits(traits: Sequence[Traits], seen: Floats) -> Floats:
    """Predict by boosting on the traits known before applications share, which no fold leaves out."""
    given, there = features(traits, seen)[:, :_TRAITS], ~np.isnan(seen).ravel()
    return np.asarray(boosted(given[there], seen.ravel()[there]).predict(given).reshape(seen.shape))


def trees(traits: Sequence[Traits], seen: Floats) -> Floats:
    given, there = np.nan_to_num(features(traits, seen), nan=-1.0), ~np.isnan(seen).ravel()
    model = ExtraTreesRegressor(300, min_samples_leaf=2, max_features=0.4, random_state=0)
    model.fit(given[there], seen.ravel()[there])
    return np.asarray(model.predict(given).reshape(seen.shape))


def process(traits: Sequence[Traits], seen: Floats) -> Floats:
    return predict(traits, seen).speed


def chosen(most: int, traits: Sequence[Traits], seen: Floats) -> Floats:
    return predict(traits, seen, most=most).speed


def by_chance(most: int, traits: Sequence[Traits], seen: Floats) -> Floats:
    measured = np.flatnonzero(~np.isnan(seen))
    return predict(traits, only(seen, np.random.default_rng(0).permutation(measured)[:most])).speed


def by_order(most: int, traits: Sequence[Traits], seen: Floats) -> Floats:
    return predict(traits, only(seen, np.flatnonzero(~np.isnan(seen))[:most])).speed


def only(seen: Floats, kept: NDArray[np.intp]) -> Floats:
    some = np.full_like(seen, np.nan)
    some.ravel()[kept] = seen.ravel()[kept]
    return some


NAME = "ours"
"""The blend of a Gaussian process and a truncated SVD that slurm-gpu uses."""
SIMPLE = ("additive", "truncated SVD", "nearest neighbours", "nearest pair")
BOUNDED = {"chosen": chosen, "by chance": by_chance, "by order": by_order}
METHODS: dict[str, Method] = {
    "constant": constant,
    "additive": additive,
    "truncated SVD": truncated_svd,
    "nearest neighbours": nearest_neighbours,
    "nearest pair": nearest,
    "extra trees": trees,
    "gradient boosting": boosting,
    "boosting, traits alone": by_traits,
    NAME: process,
}


if __name__ == "__main__":
    main()
