"""A plain implementation of LETTER's tokenizer with loops over items, the reference of the benchmark and of the tests."""

import torch
import torch.nn.functional as f


def plain_sinkhorn(distances, epsilon=0.003, iterations=50):
    """Return the transport plan of one problem, shape (rows, codes): the whole plan is normalized in every iteration."""
    distances = distances.double()
    middle = (distances.max() + distances.min()) / 2
    plan = torch.exp(-(distances - middle) / (distances.max() - middle + 1e-5) / epsilon)
    rows, codes = plan.shape
    for _ in range(iterations):
        plan = plan / plan.sum(dim=1, keepdim=True) / rows
        plan = plan / plan.sum(dim=0, keepdim=True) / codes
    return plan


def plain_groups(codebooks, n_groups=10):
    """Return the cluster of every entry of every codebook by constrained k-means, sizes 10 to 60; shape (levels, entries)."""
    from k_means_constrained import KMeansConstrained

    return [
        KMeansConstrained(n_groups, size_min=10, size_max=60, max_iter=10, n_init=10, random_state=0)
        .fit(book)
        .labels_.tolist()
        for book in codebooks.detach().numpy()
    ]


def plain_diversity_loss(book, codes, labels, draws):
    """Return the diversity loss of one level, item by item.

    Parameters
    ----------
    book
        Shape (entries, d).
    codes
        The code of every item, shape (items,).
    labels
        The cluster of every entry, a list.
    draws
        Numbers in [0, 1) that select the positives, shape (items,).
    """
    scores = book[codes] @ book.T
    own, positives = torch.zeros(scores.shape, dtype=torch.bool), []
    for row, code in enumerate(codes.tolist()):
        others = [other for other, label in enumerate(labels) if label == labels[code] and other != code]
        positives.append(others[int(draws[row] * len(others))])
        for column in range(len(book)):
            if column == code:
                own[row, column] = True
    return f.cross_entropy(scores.masked_fill(own, -1e12), torch.tensor(positives))


def plain_losses(model, vectors, collaborative, labels, draws):
    """Return the loss and its terms for a batch of a `LETTERModel`.

    Parameters
    ----------
    model
        Its parameters are used.
    vectors, collaborative
        Shape (items, d) and (items, latent_dim); the items differ.
    labels
        The cluster of every entry of every codebook, lists.
    draws
        Shape (items, levels).
    """
    vectors = vectors * model.input_scale
    latent = model.encoder(vectors)
    residual, quantized, quantization, diversity = latent, 0, 0, 0
    levels = len(model.codebooks)
    for level, book in enumerate(model.codebooks):
        with torch.no_grad():
            distances = (
                (residual**2).sum(dim=1, keepdim=True) + (book**2).sum(dim=1) - 2 * residual @ book.T
            ).clamp_min(0)
            codes = (-distances if level < levels - 1 else plain_sinkhorn(distances)).argmax(dim=1)
        entry = book[codes]
        quantization += f.mse_loss(entry, residual.detach())
        quantization += model.commitment_weight * f.mse_loss(residual, entry.detach())
        diversity += plain_diversity_loss(book, codes, labels[level], draws[:, level])
        residual, quantized = residual - entry.detach(), quantized + entry
    straight = latent + (quantized - latent).detach()
    terms = {
        "reconstruction": f.mse_loss(model.decoder(straight), vectors),
        "quantization": quantization / levels,
        "diversity": diversity / levels,
        "collaborative": f.cross_entropy(straight @ collaborative.T, torch.arange(len(vectors))),
    }
    weights = {"diversity": model.diversity_weight, "collaborative": model.collaborative_weight}
    return {"loss": sum(weights.get(name, 1) * term for name, term in terms.items()), **terms}
