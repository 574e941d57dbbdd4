"""CIFAR-10 and CIFAR-100 as their site hands them out: versions, archives, files, classes."""

from dataclasses import dataclass

from sckn.data.official import OfficialFile

__all__ = ["CIFAR10", "CIFAR100", "Batch", "Cifar", "Version"]

SITE = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Batch:
    """One file with a fixed number of images. Checksums of single files are None where none is known for certain."""

    name: str
    records: int
    md5: str | None = None


@dataclass(frozen=True)
class Version:
    """One of the forms in which a data set is handed out: an archive with one folder of files, binary or pickled."""

    pickled: bool
    archive: OfficialFile
    folder: str
    training: tuple[Batch, ...]
    test: tuple[Batch, ...]

    @property
    def batches(self) -> tuple[Batch, ...]:
        return self.training + self.test


@dataclass(frozen=True)
class Cifar:
    """A data set. `key` is its name at the command line; `labels` has the name and the number of classes of each label that an
    image has, the one to learn last.
    """

    key: str
    name: str
    page: str
    classes: tuple[str, ...]
    labels: tuple[tuple[str, int], ...]
    versions: tuple[Version, ...]


CIFAR10 = Cifar(
    key="cifar10",
    name="CIFAR-10",
    page=f"{SITE}/cifar.html",
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    labels=(("labels", 10),),
    versions=(
        Version(
            pickled=False,
            archive=OfficialFile(f"{SITE}/cifar-10-binary.tar.gz", 170_052_171, "c32a1d4ab5d03f1284b67883e8d87530"),
            folder="cifar-10-batches-bin",
            training=(
                Batch("data_batch_1.bin", 10_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
                Batch("data_batch_2.bin", 10_000, "5ea93a67294ea407fff1d09f752e9692"),
                Batch("data_batch_3.bin", 10_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
                Batch("data_batch_4.bin", 10_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
                Batch("data_batch_5.bin", 10_000, "53f37980c15c3d472c316c40844f3f0d"),
            ),
            test=(Batch("test_batch.bin", 10_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),),
        ),
        Version(
            pickled=True,
            archive=OfficialFile(f"{SITE}/cifar-10-python.tar.gz", 170_498_071, "c58f30108f718f92721af3b95e74349a"),
            folder="cifar-10-batches-py",
            training=(
                Batch("data_batch_1", 10_000, "c99cafc152244af753f735de768cd75f"),
                Batch("data_batch_2", 10_000, "d4bba439e000b95fd0a9bffe97cbabec"),
                Batch("data_batch_3", 10_000, "54ebc095f3ab1f0389bbae665268c751"),
                Batch("data_batch_4", 10_000, "634d18415352ddfa80567beed471001a"),
                Batch("data_batch_5", 10_000, "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            test=(Batch("test_batch", 10_000, "40351d587109b95175f43aff81a1287e"),),
        ),
    ),
)

CIFAR100 = Cifar(
    key="cifar100",
    name="CIFAR-100",
    page=f"{SITE}/cifar.html",
    classes=tuple(
        """
        apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
        caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
        forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
        mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
        possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
        sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
        willow_tree wolf woman worm
        """.split()  # noqa: SIM905  (a hundred names in quotes are harder to read)
    ),
    labels=(("coarse_labels", 20), ("fine_labels", 100)),
    versions=(
        Version(
            pickled=False,
            archive=OfficialFile(f"{SITE}/cifar-100-binary.tar.gz", 168_513_733, "03b5dce01913d631647c71ecec9e9cb8"),
            folder="cifar-100-binary",
            training=(Batch("train.bin", 50_000),),
            test=(Batch("test.bin", 10_000),),
        ),
        Version(
            pickled=True,
            archive=OfficialFile(f"{SITE}/cifar-100-python.tar.gz", 169_001_437, "eb9058c3a382ffc7106e4002c42a8d85"),
            folder="cifar-100-python",
            training=(Batch("train", 50_000, "16019d7e3df5f24257cddd939b257f8d"),),
            test=(Batch("test", 10_000, "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
        ),
    ),
)
