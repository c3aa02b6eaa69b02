"""Small extensions, and trackers. The engine loads each by name if a run needs it.

refit      final rounds that also train on the validation samples
bounds     sketches, caps on declared sizes, clipping of updates
attacks    malicious clients
losses     training losses of the model as received, for rules that need them
trials     clients try steps before one is taken
validation S-acc, G-acc and the global model on validation samples
newcomers  clients that join after training
trackers   TensorBoard, Weights & Biases, MLflow
"""
