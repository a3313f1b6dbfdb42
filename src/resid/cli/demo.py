"""`resid demo`: the whole way on a synthetic shop."""

from pathlib import Path

from rich.markup import escape

from resid import Dataset
from resid.cli.app import app, errors, output
from resid.cli.show import epochs_table, print_info, quality_table, steps_table
from resid.data.dataset import MANIFEST
from resid.data.folder import refuse_foreign_folder
from resid.data.synthetic import synthetic_shop
from resid.progress import ConsoleProgress


@app.command
def demo(*, out: Path = Path("demo-shop")) -> None:
    """Make a synthetic shop, prepare it and train an encoder on it; no download.

    Parameters
    ----------
    out
        The Dataset folder to write.
    """
    refuse_foreign_folder(out, MANIFEST)
    errors.print("A synthetic shop: 6,000 users, 2,000 items, 60,000 interactions.", highlight=False)
    shop = synthetic_shop(users=6_000, items=2_000, interactions=60_000, seed=0)
    data = Dataset.from_tables(
        shop.interaction_table, shop.item_table, ["store", "categories"], progress=ConsoleProgress(errors)
    )
    data.save(out)
    output.print(steps_table(data))
    print_info(data)
    history, target = data.test.window(0)
    titles = data.item_table["title"]
    output.print(
        f"\nThe last items of user {escape(str(data.user_ids[0]))}, oldest first:",
        highlight=False,
        soft_wrap=True,
    )
    for item in history[-5:]:
        output.print(f"  {escape(titles[int(item)])}", highlight=False)
    output.print(
        f"  [bold]{escape(titles[target])}[/bold]  ← the test target, which a model has to find",
        highlight=False,
    )
    from resid.encode import FAMAE, FamaeSettings

    errors.print("\nFAMAE learns item embeddings by predicting masked fields of the next item.", highlight=False)
    settings = FamaeSettings(width=64, hidden=128, epochs=8, learning_rate=3e-3, patience=0)
    encoder = FAMAE(settings).fit(data, progress=ConsoleProgress(errors))
    output.print(epochs_table(encoder.history_, encoder.best_epoch_))
    output.print(quality_table({"test": encoder.quality(data, "test")}))
    output.print(
        f"\nWrote {escape(str(out))}. Try your own tables: resid prepare --help",
        highlight=False,
        soft_wrap=True,
    )
