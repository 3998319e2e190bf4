"""The tokenizer of the model that calls tools: the demo's, with four more tokens.

    system     add(a, b)  multiply(a, b)  <tool_call>{"name": ..., "arguments": ...}</tool_call>
    user       What is 12 + 7?
    assistant  <tool_call>{"name": "add", "arguments": {"a": 12, "b": 7}}</tool_call>
    user       <tool_response>19</tool_response>

The chat template is in the style of Hermes and Qwen, but shows tools by their signatures alone:
whole schemas would be longer than all the rest for a model that reads letter by letter.
"""

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from recipes.demo.tokenizer import EOS, PAD, START, learn

VOCABULARY = 320  # with the added tokens
CALL, END_CALL = "<tool_call>", "</tool_call>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"
ADDED = (CALL, END_CALL, RESPONSE, END_RESPONSE)

CHAT_TEMPLATE = (
    "{% if tools %}{{ '<|im_start|>system' }}{% for tool in tools %}"
    "{{ '\\n' + tool.function.name + '(' }}"
    "{{ tool.function.parameters.properties | join(', ') + ')' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}"
    "{% if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user\\n' }}{% endif %}"
    "{{ '<tool_response>' + message.content + '</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}"
    "{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SENTENCES = [
    *["user", "assistant", "system", "What is + ?", "What is * ?", "Count to .", "Done."] * 40,
    *['{"name": "add", "arguments": {"a": , "b": }}', r"\boxed{ }"] * 40,
    *['{"name": "multiply", "arguments": {"a": , "b": }}', "multiply(a, b)", "add(a, b)"] * 40,
    *['{"name": "increment", "arguments": {"step": }}', "increment(step)"] * 40,
    "A tool is called with a name and with arguments, and what it answers is read after that.",
    "Take one small step after another until the count is there, and then say that it is done.",
]


def make_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Learn the tokenizer and dress it as transformers loads and saves it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=learn(SENTENCES, VOCABULARY - len(ADDED)),
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )
    added = [AddedToken(text, normalized=False, special=False) for text in ADDED]
    tokenizer.add_tokens(added)  # pyright: ignore[reportArgumentType]  # means the same class
    return tokenizer
