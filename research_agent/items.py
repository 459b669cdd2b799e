"""The items of a conversation and of a request: how they are made, and what they say."""

from research_agent.texts import JSONObject, error_text, json_text, json_value


def message(role: str, text: str) -> JSONObject:
    return {"type": "message", "role": role, "content": text}


def message_text(content: object) -> str:
    """Return the text of a message's content: a string, or the lines of its text and refusal parts.

    Raises ``TypeError`` for any other shape, so that history is never sent incomplete in silence.
    """
    texts = []
    for part in content if isinstance(content, list) else [{"text": content}]:
        match part:
            case {"text": str(text)} | {"refusal": str(text)}:
                texts.append(text)
            case _:
                raise TypeError(
                    "The content of a message in the run series must be text, or a list of text "
                    f"and refusal parts; it was {str(content)[:200]!r}."
                )
    return "\n".join(texts)


def output_items(response: object) -> list[JSONObject]:
    """Return the items of a reply's output; what isn't an item counts as absent."""
    output = response.get("output") if isinstance(response, dict) else None
    return [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []


def model_text(item: JSONObject) -> str:
    """Return what a message of the model says; any other item says nothing."""
    try:
        return message_text(item.get("content")) if item.get("type") == "message" else ""
    except TypeError:
        return ""


def call_output(tool_call: JSONObject, output: str) -> JSONObject:
    return {"type": "function_call_output", "call_id": tool_call["call_id"], "output": output}


def connector_error_output(tool_call: JSONObject, exc: BaseException) -> JSONObject:
    """Return the output of a call that failed: the JSON text of ``{"error": text}``."""
    return call_output(tool_call, json_text({"error": error_text(exc)}))


def is_error_output(output: object) -> bool:
    value = json_value(output)
    return isinstance(value, dict) and bool(value.get("error"))


def tool_outputs(evidence: list[JSONObject]) -> list[JSONObject]:
    return [item for item in evidence if item["type"] == "function_call_output"]


def size(items: list[JSONObject]) -> int:
    """Return how many characters items carry."""
    return sum(len(str(value)) for item in items for value in item.values())
