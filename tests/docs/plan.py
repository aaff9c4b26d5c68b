"""Where each command of the documents is executed: at once unless it is named here."""

SLOW: dict[str, tuple[str, ...]] = {
    # Minutes, or built on what took minutes; a beginning stands for all commands that begin so.
    "README.md": (
        "make demo",
        "troth verify",
        "troth simulate",
        "for me in alice bob carol dave; do troth join",
        "troth export",
        "import troth",
    ),
    "docs/verify.md": ("troth ",),
    "docs/friends.md": (
        "troth join",
        "troth export",
        "troth verify",
        "troth new more.toml",
        "echo $?",
        "sed ",
    ),
    "docs/lab.md": ("troth lab run", "troth lab report"),
    "docs/door.md": ("troth join", "troth invite", "troth simulate"),
    "examples/own_attack.py": ("troth simulate",),
    "examples/own_task.py": ("troth simulate",),
    "examples/huggingface_model.py": ("troth swarm",),
}

NOT_RUN: dict[str, str] = {
    "pip install .": "it installs into the environment that it is typed in",
    "make test": "it runs these tests",
    "make test-all": "it runs these tests",
    "make check": "the first part of make test",
    "make test-seeds": "minutes, of tests that make test runs with fewer seeds",
    "make bench": "it rewrites the measured figures in benchmarks/",
    "make vectors": "it rewrites tests/golden/",
    ".venv/bin/pre-commit install": "it changes the hooks of the clone that it is typed in",
    "make test-docs": "it runs these tests",
    "troth lab run noniid-mnist --data data --device cuda": "hours without a GPU, and MNIST is not among the tests' data",
    "troth lab run momentum-cifar10 --data data --device cuda": "hours on a GPU, and CIFAR-10 is not among the tests' data",
    "nvidia-cuda-mps-control -d": "a service of a GPU",
    "troth lab run resnet18-cifar10 --data data --device cuda --workers 6": "hours on a GPU",
    "echo quit | nvidia-cuda-mps-control": "a service of a GPU",
    "troth watch runs/demo": "it goes on until Ctrl-C; tests/cli/test_watch.py runs it",
    "troth watch runs/small": "it goes on until Ctrl-C; tests/cli/test_watch.py runs it",
    "troth lab run theory": "a quarter of an hour of two cores",
    "python -m benchmarks.theory results/theory": "of the sweep that is not run",
    "troth swarm --task lightning_module.py --peers 5 --byzantine 1": "lightning is not among the tests' packages",
}

OWN_TESTS: dict[str, str] = {
    # Pages and examples that have a test which executes all of them, and compares.
    "docs/plug-ins.md": "tests/test_plug_ins_page.py",
    "docs/python-api.md": "tests/api/test_page.py",
}

NO_OUTPUT: tuple[str, ...] = ("docs/read-the-code.md",)
"""Pages with a drawing in a block without a language."""


def is_slow(page: str, command: str) -> bool:
    return command.startswith(SLOW.get(page, ()))
