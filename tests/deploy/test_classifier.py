"""``FederatedClassifier``: a federation as one classifier of scikit-learn."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn")
import pandas as pd
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import comity
from comity import FederatedClassifier

QUICK: dict[str, Any] = {"rounds": 5, "lr": 0.3, "options": {"control": "none"}}


def rows(count: int = 180) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three sites; the last one labels the other way round."""
    random = np.random.default_rng(0)
    x, sites = random.normal(size=(count, 3)), np.repeat(["east", "north", "west"], count // 3)
    ill = (x[:, 0] + x[:, 1] > 0) != (sites == "west")
    return x, np.where(ill, "ill", "well"), sites


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn() -> None:
    results = check_estimator(FederatedClassifier(rounds=10, lr=0.1, options={"control": "none"}), on_fail=None)
    assert [each["check_name"] for each in results if each["status"] == "failed"] == []


def test_each_group_is_predicted_by_its_own_model() -> None:
    x, y, sites = rows()
    fitted = FederatedClassifier(guard="mixture", **QUICK | {"rounds": 20}).fit(x, y, groups=sites)
    assert list(fitted.models_) == ["east", "north", "west"]
    assert fitted.classes_.tolist() == ["ill", "well"]
    assert (fitted.predict(x, groups=sites) == y).mean() > 0.8, "the guard keeps west on its own model"
    for site, model in fitted.models_.items():
        mine = sites == site
        assert np.array_equal(fitted.predict_proba(x, groups=sites)[mine], model.predict_proba(x[mine]))
    assert fitted.verdict_.title in ("Join", "Join with the guard", "Train locally", "Undecided")
    assert {str(row) for row in fitted.clients_.rows} == {"east", "north", "west"}


def test_models_are_those_of_a_run_with_the_same_options() -> None:
    x, y, sites = rows()
    fitted = FederatedClassifier(**QUICK).fit(x, y, groups=sites)
    done = comity.run(data=(x.astype("float32"), y, sites), rounds=5, lr=0.3, control="none")
    mine = done.federation.clients[0].test
    net = done.site.model()
    net.write(done.server.export()[0])
    expected = net.net(mine.x).softmax(1).detach().numpy()
    raw = x.astype("float32")[done.federation.clients[0].test_ids]
    assert np.allclose(fitted.models_["east"].predict_proba(raw), expected, atol=1e-6)


def test_a_data_frame_with_text_and_blanks() -> None:
    x, y, sites = rows()
    frame = pd.DataFrame({"age": x[:, 0], "pressure": x[:, 1], "ward": np.where(x[:, 2] > 0, "a", "b")})
    frame.loc[3, "age"] = None
    frame.loc[5, "ward"] = None
    fitted = FederatedClassifier(**QUICK).fit(frame, y, groups=sites)
    assert fitted.feature_names_in_.tolist() == ["age", "pressure", "ward"]
    assert fitted.predict(frame, groups=sites).shape == (180,)
    assert fitted.models_["east"].schema.features == ["age", "pressure", "ward = a", "ward = b"]


def test_a_pipeline_and_what_is_rejected() -> None:
    x, y, sites = rows()
    pipeline = make_pipeline(StandardScaler(), FederatedClassifier(**QUICK))
    pipeline.fit(x, y, federatedclassifier__groups=sites)
    assert pipeline.predict(x, groups=sites).shape == y.shape
    fitted = pipeline[-1]
    for groups, words in ((None, "a model for each of 3 groups"), (["south"] * 180, "no model for the group 'south'")):
        with pytest.raises(ValueError, match=words):
            fitted.predict(x, groups=groups)
    with pytest.raises(NotFittedError):
        FederatedClassifier().predict(x)
    with pytest.raises(ValueError, match="one class"):
        FederatedClassifier(**QUICK).fit(x, ["ill"] * 180, groups=sites)
