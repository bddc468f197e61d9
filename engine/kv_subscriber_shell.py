"""The place from which `KVEventSubscriber` is imported, kept for programs that know it."""

from engine.kv_events.subscriber.process import KVEventSubscriber, SubscriberRecipe, subscriber_main

__all__ = ["KVEventSubscriber", "SubscriberRecipe", "subscriber_main"]
