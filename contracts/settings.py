"""What every settings class is made of: set by the environment, finite, and one sentence for a value that cannot be."""

from typing import Any

from pydantic import ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.errors import BadInput, first_fault

LARGEST = 2**31 - 1
"""Of any number without an upper bound of its own: the C integers, clocks and timeouts below hold no more."""


class Settings(BaseSettings):
    """Base of the rooms' settings; `BadInput` names the environment variable (or the argument) and its value."""

    model_config = SettingsConfigDict(allow_inf_nan=False)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            prefix = self.model_config.get("env_prefix", "")
            raise BadInput(
                first_fault(error, lambda name: name if not prefix or name in given else f"{prefix}{name}".upper())
            ) from None

    @field_validator("*")
    @classmethod
    def _holdable(cls, value: Any, info: ValidationInfo) -> Any:
        bounded = any(hasattr(one, "le") for one in cls.model_fields[info.field_name or ""].metadata)
        if isinstance(value, int | float) and not bounded and value > LARGEST:
            raise ValueError(f"Input should be less than or equal to {LARGEST:,}")
        return value
