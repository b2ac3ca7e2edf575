"""Turns a torch module of this package into a `Seq2SeqModel`: device, optimiser, updates, weights in and out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import nn

from impls.bahdanau_gru import AttentionGru
from impls.contract import (
    NO_TOTALS,
    PAD,
    Arrays,
    Batch,
    GruRecipe,
    Ids,
    Numbers,
    Recipe,
    Totals,
    Training,
    TransformerRecipe,
)
from impls.field_checks import check_length
from impls.pytorch.cpu_kernels import output_loss
from impls.pytorch.dropout import Dropout, Dropouts, DropoutSource
from impls.pytorch.matmul_precision import check_matmul_precision, matmul_precision, training_setting
from impls.pytorch.torch_decoding import TorchDecoding
from impls.pytorch.torch_packing import GROUP_ROWS, ROW_MULTIPLE, groups_by_length, pack, pack_by_position
from impls.pytorch.torch_transformer import Transformer
from impls.pytorch.weight_names import WeightSlot, slots
from impls.torch_reference import TorchReference
from impls.weights import check, initial

PRECISIONS = ("float32", "bfloat16")
Indices = np.ndarray[Any, np.dtype[np.int64]]


class TorchModel:
    """A `Seq2SeqModel` around a torch module.

    The module has `forward(source, target_in)` giving features, `output(features)` giving logits,
    `cross_attention(source, target_in)`, and for incremental decoding `prefill(source)`, giving a state that has
    `reorder(rows)`, and `step(state, last)`.
    """

    fused_adam: bool | None = True
    matmul_precision = "highest"
    few_row_counts = False
    """Whether layers multiply few different numbers of rows, so that `training_setting` suits them in training."""

    without_gradients: Callable[[], contextlib.AbstractContextManager[object]] = torch.inference_mode

    def __init__(
        self,
        recipe: Recipe | None,
        module: Any,
        weights: Arrays,
        *,
        training: Training,
        dropout_source: DropoutSource,
        seed: int,
        precision: str,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: use {' or '.join(PRECISIONS)}")
        if torch.get_default_dtype() != torch.float32:
            raise ValueError(
                f"torch's default dtype is {torch.get_default_dtype()}: models compute in float32, "
                "so call torch.set_default_dtype(torch.float32) first"
            )
        self.recipe = recipe
        self.module = module.to(dropout_source.device)
        self._device, self._dropout_source, self._seed = dropout_source.device, dropout_source, seed
        self._training, self._precision = training, precision
        self._updates = 0
        self._slots = self.weight_slots(module)
        self._parameters = list(module.parameters())
        betas = (training.beta1, training.beta2)
        self._optimiser = torch.optim.Adam(self._parameters, betas=betas, eps=training.epsilon, fused=self.fused_adam)
        self._sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        self._largest = torch.zeros((), device=self._device)
        self._finite = torch.ones((), dtype=torch.bool, device=self._device)
        self._set_totals(NO_TOTALS)
        self.set_weights(weights)
        self._make_moments()

    @staticmethod
    def weight_slots(module: nn.Module) -> dict[str, WeightSlot]:
        """Return where each canonical tensor lies in the module."""
        return slots(module)

    def set_matmul_precision(self, name: str) -> None:
        """Multiply float32 matrices in this precision from now on. Raises: as `check_matmul_precision` does."""
        check_matmul_precision(name, precision=self._precision, device=self._device)
        self.matmul_precision = name

    # Training ---------------------------------------------------------------------------------------------------------

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; waits for the device only to capture a CUDA graph."""
        self._updates += 1
        self.module.train()
        with matmul_precision(self._training_setting() if self.few_row_counts else self.matmul_precision):
            self._train(batch, learning_rate)

    def _training_setting(self) -> str:
        return training_setting(self.matmul_precision, self._device)

    def _train(self, batch: Batch, learning_rate: float) -> None:
        self._dropout_source.restart(self._seed, self._updates)
        self._optimiser.zero_grad(set_to_none=True)
        with self._mixed():
            features, indices = self._features(batch)
            target = self.to_device(batch.target_out.reshape(-1)[indices].astype(np.int64))
            output, smoothing = self.module.output, self._training.label_smoothing
            with matmul_precision(self._training_setting()):
                objective, nats = output_loss(features, output.weight, output.bias, target, smoothing)
        self._descend(objective, nats, max(len(indices), 1), learning_rate)
        self._count(len(indices))

    def _features(self, batch: Batch) -> tuple[torch.Tensor, Indices]:
        """Return the features of the tokens to predict, [N,...], and their places in `target_out` flattened, [N].

        Rows of features after these are filling. It never waits for the device.
        """
        indices = np.flatnonzero(batch.target_out != PAD)
        features = self.module(self.to_device(batch.source), self.to_device(batch.target_in)).flatten(0, 1)
        return features.index_select(0, self.to_device(indices)), indices

    def _to_predict(self, features: torch.Tensor, indices: Indices, batch: Batch) -> tuple[torch.Tensor, Indices]:
        """Return the features and places of those packed rows whose next token is predicted; filling may stay."""
        chosen = np.flatnonzero(batch.target_out.reshape(-1)[indices] != PAD)
        if len(chosen) < len(indices):
            features = features.index_select(0, self.to_device(chosen))
        return features, indices[chosen]

    def _group_rows(self, batch: Batch) -> int:
        """Return how many sentences are padded together; on a GPU all of them, because fewer kernels are faster."""
        return GROUP_ROWS if self._device.type == "cpu" else len(batch.source)

    def _descend(
        self,
        objective: torch.Tensor,
        nats: torch.Tensor,
        tokens: int | torch.Tensor,
        learning_rate: float | torch.Tensor,
    ) -> None:
        """Backpropagate the summed loss, clip, update and accumulate totals, all in place."""
        (objective / tokens).backward()
        norm = nn.utils.get_total_norm([parameter.grad for parameter in self._parameters if parameter.grad is not None])
        if self._training.clip_norm is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, self._training.clip_norm, norm)
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._optimiser.step()
        torch.autograd.graph.increment_version(self._parameters)  # fused Adam does not
        self._sums += torch.stack([objective.detach(), nats.detach()])
        torch.maximum(self._largest, norm, out=self._largest)
        self._finite &= torch.isfinite(objective.detach()) & torch.isfinite(norm)

    def _count(self, tokens: int) -> None:
        self._counted[0] += tokens
        self._counted[1] += 1

    def _set_totals(self, totals: Totals) -> None:
        for total, value in zip(self._sums, (totals.objective_nats, totals.nats), strict=True):
            total.fill_(value)
        self._largest.fill_(totals.largest_gradient_norm)
        self._finite.fill_(totals.finite)
        self._counted = [totals.tokens, totals.updates]

    def peek_totals(self) -> Totals:
        """Wait for the device and return the sums since the last `take_totals`, without resetting them."""
        objective, nats = self._sums.tolist()
        tokens, updates = self._counted
        return Totals(objective, nats, tokens, updates, float(self._largest), bool(self._finite))

    def take_totals(self) -> Totals:
        """Wait for the device, return the sums since the last call, and reset them."""
        totals = self.peek_totals()
        self._set_totals(NO_TOTALS)
        return totals

    # Evaluation -------------------------------------------------------------------------------------------------------

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target token, [B,T]; 0 at padding."""
        nats = np.zeros(batch.target_out.shape, np.float32)
        with self.evaluation():
            features, indices = self._features(batch)
            logits = self.module.output(features)[: len(indices)].float()
            target = self.to_device(batch.target_out.reshape(-1)[indices].astype(np.int64))
            token_nats = logits.logsumexp(dim=-1) - logits.gather(1, target[:, None])[:, 0]
        nats.reshape(-1)[indices] = token_nats.cpu().numpy()
        return nats

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the logits of the next token at each position, [B,T,V]."""
        with self.evaluation():
            features = self.module(self.to_device(source), self.to_device(target_in))
            return self.module.output(features).float().cpu().numpy()

    def begin_decoding(self, source: Ids) -> TorchDecoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first token."""
        with self.evaluation():
            return TorchDecoding(self, self.module.prefill(self.to_device(source)))

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the attention weights of target on source positions, [B,layers,H,T,S]; each row sums to 1."""
        with self.evaluation():
            return self.module.cross_attention(self.to_device(source), self.to_device(target_in)).float().cpu().numpy()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Switch dropout and gradients off, and the precision of the model on."""
        if self.module.training:
            self.module.eval()
        with self.without_gradients(), matmul_precision(self.matmul_precision), self._mixed():
            yield

    def _mixed(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._precision == "bfloat16")

    def to_device(self, array: np.ndarray[Any, Any]) -> torch.Tensor:
        """Copy an array to the device without waiting for it."""
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device, non_blocking=True)

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    # Weights and state ------------------------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        """Return copies of all weights under their canonical names and in their canonical layouts."""
        return {name: slot.read(slot.parameter) for name, slot in self._slots.items()}

    def set_weights(self, weights: Arrays) -> None:
        """Replace all weights. Raises: ValueError naming what is missing, unexpected or misshaped."""
        check(weights, {name: slot.shape for name, slot in self._slots.items()})
        for name, slot in self._slots.items():
            slot.write(slot.parameter, weights[name])

    def training_state(self) -> Arrays:
        """Return what an exact resume needs: weights, moments, the number of updates and the seed."""
        state: Arrays = {f"weights/{name}": array for name, array in self.weights().items()}
        state |= {f"totals/{name}": np.array(value) for name, value in vars(self.peek_totals()).items()}
        for kind, key in (("first_moment", "exp_avg"), ("second_moment", "exp_avg_sq")):
            for name, slot in self._slots.items():
                state[f"{kind}/{name}"] = slot.read(self._optimiser.state[slot.parameter][key])
        return state | {"updates": np.array(self._updates), "random/seed": np.array(self._seed)}

    def set_training_state(self, state: Arrays) -> None:
        """Continue from `training_state()`. Raises: ValueError naming what is missing, unexpected or misshaped."""
        check(state, {name: array.shape for name, array in self.training_state().items()})
        self._updates, self._seed = int(state["updates"]), int(state["random/seed"])
        self._set_totals(Totals(**{total.name: state[f"totals/{total.name}"].item() for total in fields(Totals)}))
        for name, slot in self._slots.items():
            moments = self._optimiser.state[slot.parameter]
            moments["step"].fill_(self._updates)
            slot.write(slot.parameter, state[f"weights/{name}"])
            slot.write(moments["exp_avg"], state[f"first_moment/{name}"])
            slot.write(moments["exp_avg_sq"], state[f"second_moment/{name}"])

    def _make_moments(self) -> None:
        # Adam reads the step of a parameter on the CPU, except where the whole update is one kernel.
        device = self._device if self.fused_adam else "cpu"
        for parameter in self._parameters:
            self._optimiser.state[parameter] = {
                "step": torch.zeros((), device=device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


class TransformerModel(TorchModel):
    """A Transformer, which trains and evaluates on packed rows."""

    few_row_counts = True

    def _features(self, batch: Batch) -> tuple[torch.Tensor, Indices]:
        check_length(max(batch.source.shape[1], batch.target_in.shape[1]), self.module.max_length)
        in_float32_by_mkl = self._precision == "float32" and torch.get_float32_matmul_precision() == "highest"
        with_onednn = self._device.type == "cpu" and not in_float32_by_mkl
        packing = pack(
            batch,
            heads=self.module.heads,
            group_rows=self._group_rows(batch),
            to_device=self.to_device,
            multiple=ROW_MULTIPLE if with_onednn else 1,
        )
        return self._to_predict(self.module.packed(packing), packing.indices, batch)


class TorchGruModel(TorchModel):
    """The GRU, which trains and evaluates on packed rows, and trains with teacher forcing at the training's rate."""

    def _features(self, batch: Batch) -> tuple[torch.Tensor, Indices]:
        teacher_forced = None
        if self.module.training:
            teacher_forced = tuple(
                self._training.teacher_forcing_mask(self._seed, self._updates, batch.target_in.shape[1]).tolist()
            )
        packed = pack_by_position(batch, to_device=self.to_device)
        return self._to_predict(self.module.packed(packed, teacher_forced), packed.indices, batch)


class TorchDropoutModel(TorchModel):
    """A model whose modules use torch's own dropout and therefore torch's global generator."""

    @contextlib.contextmanager
    def _seeded_dropout(self) -> Iterator[None]:
        """Seed the global generator with (seed, update), and restore its state afterwards."""
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(np.random.SeedSequence([self._seed, self._updates]).generate_state(1)[0]))
            yield


class TorchReferenceModel(TorchDropoutModel):
    """torch's own layers, on groups of sentences of similar length instead of packed rows."""

    def _features(self, batch: Batch) -> tuple[torch.Tensor, Indices]:
        if not self.module.training:
            return self._of_groups(batch)
        with self._seeded_dropout():
            return self._of_groups(batch)

    def _of_groups(self, batch: Batch) -> tuple[torch.Tensor, Indices]:
        features, indices = [], []
        for rows, part in groups_by_length(batch, self._group_rows(batch)):
            group_features, inside = super()._features(part)
            row, position = np.divmod(inside, part.target_in.shape[1])
            features.append(group_features)
            indices.append(rows[row] * batch.target_in.shape[1] + position)
        return torch.cat(features), np.concatenate(indices)


def device_of(name: str) -> torch.device:
    """Return the device of that name. Raises: ValueError if it is not available."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise ValueError(f"device {name!r} is not available: {reason}") from error
    return device


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    device: str,
    kind: type[TorchModel] = TransformerModel,
    **settings: Any,
) -> TorchModel:
    """Build any recipe but the plain one with the settings of `impls.build`; `kind` is the model of a Transformer."""
    dropout_source, sizes = DropoutSource(device_of(device)), (source_vocabulary_size, target_vocabulary_size)
    weights = initial(recipe, *sizes, seed=settings["seed"])
    module: nn.Module
    with torch.random.fork_rng(devices=[]):  # torch draws initial values, which `weights` replace
        if isinstance(recipe, TransformerRecipe):
            rates = (recipe.dropout, recipe.attention_rate, recipe.activation_rate)
            module = Transformer(recipe, *sizes, dropout=Dropouts(*(Dropout(rate, dropout_source) for rate in rates)))
        elif isinstance(recipe, GruRecipe):
            module, kind = AttentionGru(recipe, *sizes, dropout=Dropout(recipe.dropout, dropout_source)), TorchGruModel
        else:
            module, kind = TorchReference(recipe, *sizes), TorchReferenceModel
    return kind(recipe, module, weights, dropout_source=dropout_source, **settings)
