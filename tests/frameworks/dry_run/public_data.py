#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""public_data.py FOLDER SOURCES: data that look as those of public scripts do, and need no network: texts, conversations, pictures, a
tokenizer, and a Llama of 40 million parameters. For `public`, by the Python that the scripts run on."""
import itertools
import json
import os
import random
import string
import sys

WORDS = ("the a of and to in that it is was for on as with his they at be this from have or by one had not but what all were when we "
         "there can an your which their said if do will each about how up out them then she many some so these would other into has "
         "more her two like him see time could no make than first been its who now people my made over did down only way find use").split()
TEMPLATE = ("{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}{{ eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}")


def sentence(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words)).capitalize() + "."


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def write_rows(path, rows):
    write(path, "".join(json.dumps(row) + "\n" for row in rows))


def texts(folder, sources, draw):
    text = "\n".join(sentence(draw, 20) for _ in range(4000)) + "\n" + string.ascii_letters + string.punctuation
    write(os.path.join(folder, "text.txt"), text)
    for name in ("train", "valid", "test"):
        write(os.path.join(folder, "corpus", name + ".txt"), text)
    write(os.path.join(sources, "minGPT", "projects", "chargpt", "input.txt"), text)
    rows = [{"text": sentence(draw, 400)} for _ in range(2000)]
    write_rows(os.path.join(sources, "torchtitan", "tests", "assets", "c4_test", "data.json"), rows)
    return text


def conversations(folder, draw):
    def message(role):
        return {"role": role, "content": sentence(draw, 60)}

    rows = [(message("user"), message("assistant"), message("assistant")) for _ in range(400)]
    marks = itertools.cycle([True, False])
    for name, kinds in (("talks", lambda user, good, bad: {"messages": [user, good]}),
                        ("pairs", lambda user, good, bad: {"prompt": [user], "chosen": [good], "rejected": [bad]}),
                        ("choices", lambda user, good, bad: {"chosen": [user, good], "rejected": [user, bad]}),
                        ("prompts", lambda user, good, bad: {"prompt": [user]}),
                        ("marks", lambda user, good, bad: {"prompt": [user], "completion": [good], "label": next(marks)}),
                        ("orders", lambda user, good, bad: {"instruction": user["content"], "input": "", "output": good["content"]})):
        for part in ("train", "test"):
            write_rows(os.path.join(folder, name, part + ".jsonl"), [kinds(*row) for row in rows])


def numbers(sources, text):
    import numpy
    path = os.path.join(sources, "nanoGPT", "data", "words")
    os.makedirs(path, exist_ok=True)
    for name in ("train", "val"):
        numpy.frombuffer(text.encode(), dtype=numpy.uint8).astype(numpy.uint16).tofile(os.path.join(path, name + ".bin"))


def pictures(folder):
    from PIL import Image
    os.makedirs(os.path.join(folder, "pictures"), exist_ok=True)
    for number in range(320):
        name = f"kind{number % 4}_{number}.jpg"
        Image.new("RGB", (256, 256), (number % 256, 90, 30)).save(os.path.join(folder, "pictures", name))


def model(folder, text):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.train_from_iterator(text.splitlines(), trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["<s>", "</s>", "<pad>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
                                   model_max_length=1024)
    fast.chat_template = TEMPLATE
    path = os.path.join(folder, "llama")
    config = LlamaConfig(vocab_size=2048, hidden_size=768, intermediate_size=2048, num_hidden_layers=6, num_attention_heads=12,
                         num_key_value_heads=4, bos_token_id=0, eos_token_id=1, pad_token_id=2, max_position_embeddings=2048)
    LlamaForCausalLM(config).save_pretrained(path)
    fast.save_pretrained(path)


def main():
    folder, sources = sys.argv[1:]
    draw = random.Random(41)
    text = texts(folder, sources, draw)
    conversations(folder, draw)
    numbers(sources, text)
    pictures(folder)
    model(folder, text)


main()
