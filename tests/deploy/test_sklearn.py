"""scikit-learn's own checks of what the estimator claims: a classifier that is fitted and frozen."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks
from sklearn.utils.validation import check_is_fitted

from comity import load_model

CHECKS = (
    *("tags_renamed", "repr", "sparse_array", "sparse_matrix"),
    *("valid_tag_types", "mixin_order", "get_params_invariance", "set_params", "dict_unchanged", "fit_check_is_fitted"),
    *("fit_score_takes_y", "estimators_overwrite_params", "dont_overwrite_parameters", "estimators_fit_returns_self"),
    *("readonly_memmap_input", "pipeline_consistency", "estimators_pickle", "f_contiguous_array_estimator"),
    *("classifiers_one_label", "decision_proba_consistency", "fit2d_1sample", "fit2d_predict1d"),
    *("methods_sample_order_invariance", "methods_subset_invariance", "non_transformer_estimators_n_iter"),
)
"""All but those that train samples of another number of features, or want ``fit`` to look at its arguments."""


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_of_scikit_learn_that_apply(numbers: Path, check: str) -> None:
    found = [getattr(estimator_checks, f"{kind}_{check}", None) for kind in ("check", "check_estimator")]
    (one,) = filter(None, found)
    one("ClientModel", load_model(numbers))


def test_it_takes_its_place_in_scikit_learn(numbers: Path) -> None:
    model = load_model(numbers)
    x = np.random.default_rng(1).normal(size=(40, 3)) * [1, 10, 0.1] + 5
    y = model.predict(x)
    check_is_fitted(model)
    assert is_classifier(model)
    assert clone(model) is model
    assert get_scorer("accuracy")(model, x, y) == 1
    assert get_scorer("neg_log_loss")(model, x, y) < 0
    assert make_pipeline(FrozenEstimator(model)).fit(x, y).predict_proba(x).shape == (40, 2)
    calibrated = CalibratedClassifierCV(FrozenEstimator(model)).fit(x, y)
    assert calibrated.predict_proba(x).sum(1) == pytest.approx(np.ones(40))
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(x), model.predict_proba(x))
