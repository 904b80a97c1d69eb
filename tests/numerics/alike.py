"""Which models of the zoo have their like among the others: ``make test-slow`` has them all."""

from __future__ import annotations

import zoo

NUMBERS = {"zoo.losses", "zoo.schedules"}
#: For `make test-slow`: each has its like among those of `make test`, or in a test of a search,
#: or is a number of the optimizer's step that packs hand on as they find it.
ALIKE = {
    "attention",
    "bidirectional_gru_embedding",
    "bidirectional_gru_masking",
    "clipnorm",
    "clipvalue",
    "compute_loss_of_a_kernel",
    "conv1d",
    "conv_batchnorm",
    "conv_transpose",
    "custom_compute_loss",
    "custom_layer",
    "custom_loss",
    "custom_loss_and_metric",
    "custom_train_step",
    "dense",
    "dense_l1_l2",
    "dense_slopes",
    "ema",
    "ema_overwrite",
    "functional_dict",
    "functional_list",
    "gaussian_noise",
    "global_clipnorm",
    "gradient_accumulation",
    "groupnorm",
    "lambda_layer",
    "loss_scale_factor",
    "lstm_recurrent_dropout",
    "masked_tagging",
    "mixed_bfloat16",
    "normalization_adapted",
    "own_augmentation",
    "rand_augment",
    "random_contrast",
    "random_flip",
    "random_rotation",
    "rescaling_constants",
    "seed_generator",
    "separable_conv",
    "shared_layers",
    "spatial_dropout",
    "steps_per_execution",
    "subclassed",
    "uint8_rescaling",
    "vector_metric",
    "weight_decay",
    "without_jit",
}
#: Those of `make test`.
OPTIMIZERS = {"optimizer_Adam"}


def is_like_others(name: str) -> bool:
    """Whether ``make test-slow`` will do."""
    optimizer = name.startswith("optimizer_") and name not in OPTIMIZERS
    return optimizer or name in ALIKE or zoo.CASES[name].build.__module__ in NUMBERS
