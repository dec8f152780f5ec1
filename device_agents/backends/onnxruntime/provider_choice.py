"""Choose the backend for the provider that the options select."""

from __future__ import annotations

from typing import Any, Dict, Union

from device_agents.backends.onnxruntime.onnxruntime_backend import OnnxRuntimeBackend
from device_agents.backends.onnxruntime.provider_backend import ProviderBackend
from device_agents.backends.onnxruntime.providers import CPU, read_provider
from device_agents.backends.onnxruntime.session_settings import OPTIONS
from device_agents.backends.option_reader import OptionReader


def open_onnxruntime(options: Dict[str, Any]) -> Union[OnnxRuntimeBackend, ProviderBackend]:
    """Return the backend for these options; raises Refused."""
    provider = read_provider(OptionReader(OnnxRuntimeBackend.name, options, OPTIONS))
    return OnnxRuntimeBackend(options) if provider.name == CPU else ProviderBackend(options)
