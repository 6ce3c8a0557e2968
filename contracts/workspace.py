"""The workspace: one folder with everything a run makes."""

from pathlib import Path

from contracts.artifacts import ArtifactStore
from contracts.dataset import Dataset
from contracts.errors import BadInput
from contracts.lake import Lake
from contracts.swap import settle


class Workspace:
    """Where things lie below one folder: `lake/`, `features/`, `samples/`, `artifacts/`, `reports/`, `truth/`, `run/`."""

    def __init__(self, root: Path | str):
        self.root = Path(root).resolve()
        if self.root.exists() and not self.root.is_dir():
            raise BadInput(f"workspace {self.root} is a file, not a folder")

    @property
    def lake(self) -> Lake:
        """The log's tables (`contracts.tables`)."""
        return Lake(self.root / "lake")

    @property
    def features(self) -> Lake:
        """Feature state as of set moments (`contracts.states`)."""
        return Lake(self.root / "features")

    @property
    def samples(self) -> Lake:
        """Training samples (`contracts.samples`)."""
        return Lake(self.root / "samples")

    @property
    def artifacts(self) -> ArtifactStore:
        """Models, recall artifacts, value models."""
        return ArtifactStore(self.root / "artifacts")

    @property
    def dataset_path(self) -> Path:
        """The description of the log in the lake."""
        return self.root / "lake" / "dataset.json"

    def dataset(self) -> Dataset:
        """The description of the log; `BadInput` when there is no log yet. Finishes a swap of logs that was cut off."""
        settle(self.root)
        return Dataset.load(self.dataset_path)

    @property
    def truth(self) -> Path:
        """What only the behaviour environment knows; no room below the simulator may read it."""
        return self.root / "truth"

    @property
    def reports(self) -> Path:
        """Reports for people and their JSON."""
        return self.root / "reports"

    @property
    def run(self) -> Path:
        """Files of running processes: Redis data, process ids, logs."""
        return self.root / "run"
