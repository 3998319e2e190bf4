r"""A byte-level BPE tokenizer of 320 tokens with a ChatML template, learned in a second.

    <|im_start|>user\nWhat is 37 + 58?<|im_end|>\n<|im_start|>assistant\n\boxed{95}<|im_end|>

    3 special tokens + 256 bytes + 61 merges = 320

Digits stay single tokens, so a number is read and written one digit at a time. The pad token is
not the eos token: a trainer that masks padding would mask the eos away, and the policy would
never learn to stop.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

VOCABULARY = 320
PAD, START, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
DIGIT_OR_WORD = r"\d| ?[^\s\d]+|\s+"  # \boxed{ is one word and becomes one token

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# What the merges are learned from: the words of the task first, then enough plain English
# that 61 merges can be found.
SENTENCES = (
    ["system", "user", "assistant", "What is + ?", r"\boxed{ }"] * 100
    + [
        "You are a helpful assistant. Add the two numbers and give the answer in a box.",
        "The sum of the two numbers is the answer, so the answer is in the box.",
        "First add the ones, then carry the ten, then add the tens and write the total.",
    ]
)  # fmt: skip


def make_tokenizer(model_max_length: int) -> PreTrainedTokenizerFast:
    """Learn the tokenizer and dress it as transformers loads and saves it."""
    learned = learn(SENTENCES, VOCABULARY)
    return PreTrainedTokenizerFast(
        tokenizer_object=learned,
        pad_token=PAD,
        eos_token=EOS,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=model_max_length,
        clean_up_tokenization_spaces=False,
    )


def learn(sentences: Iterable[str], vocabulary: int) -> Tokenizer:
    """Learn byte-level BPE of `vocabulary` tokens, digits one by one."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(DIGIT_OR_WORD), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, START, EOS],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer
