# SPDX-License-Identifier: Apache-2.0
"""Public scripts, and the commands that `public` gives a dry run of: their own, with data that are here in the place of those that
they would get from the network."""
from collections import namedtuple

SOURCES = {
    "nanoGPT": ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
    "minGPT": ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "torchtitan": ("pytorch/torchtitan", "b5bcd76c66d0acb1a08b176d9639425bc55e0b2a"),
    "transformers": ("huggingface/transformers", "3a275d3581c0ecf962f7412aa764c2047331fd6b"),
    "trl": ("huggingface/trl", "f2cd57710ae345ea6428ae95363267fcf38a3dc8"),
    "peft": ("huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40"),
    "accelerate": ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83"),
    "DeepSpeedExamples": ("deepspeedai/DeepSpeedExamples", "45b4b7156c8794a3452a5a7d03dbd8d797068569"),
}
# source, path in it, folder in it where the command runs, arguments of `metashard dry-run`, the command
Script = namedtuple("Script", "source path folder arguments command")


def ranks(number, *command):
    return ["torchrun", "--nproc-per-node", str(number), *command]


def script(source, path, command, arguments=(), folder=None):
    """The command runs in the folder of the script, if no other is said."""
    return Script(source, path, path.rsplit("/", 1)[0] if folder is None and "/" in path else folder or ".", list(arguments), command)


MODEL, SHORT = "{data}/llama", ["--max_steps", "5", "--output_dir", "{out}", "--report_to", "none"]
NANO = ["--dataset=words", "--batch_size=4", "--gradient_accumulation_steps=8", "--eval_iters=1", "--max_iters=5", "--out_dir={out}"]
SCRIPTS = [
    script("nanoGPT", "train.py", ["python", "train.py", "--compile=False", *NANO]),
    script("nanoGPT", "train.py", ranks(4, "train.py", *NANO)),
    script("minGPT", "projects/chargpt/chargpt.py",
           ["python", "chargpt.py", "--trainer.num_workers=0", "--trainer.max_iters=5"]),
    script("minGPT", "projects/adder/adder.py",
           ["python", "adder.py", "--trainer.num_workers=0", "--trainer.max_iters=5"]),
    script("examples", "distributed/FSDP2/example.py", ranks(2, "example.py")),
    script("examples", "distributed/ddp/example.py", ranks(4, "example.py")),
    script("examples", "distributed/ddp-tutorial-series/single_gpu.py", ["python", "single_gpu.py", "2", "1"]),
    script("examples", "distributed/ddp-tutorial-series/multigpu.py", ["python", "multigpu.py", "2", "1"], ["--world", "8"]),
    script("examples", "distributed/ddp-tutorial-series/multigpu_torchrun.py", ranks(4, "multigpu_torchrun.py", "2", "1")),
    script("examples", "distributed/ddp-tutorial-series/multinode.py",
           ["torchrun", "--nnodes", "2", "--nproc-per-node", "4", "multinode.py", "2", "1"]),
    script("examples", "distributed/tensor_parallelism/tensor_parallel_example.py", ranks(4, "tensor_parallel_example.py")),
    script("examples", "distributed/tensor_parallelism/sequence_parallel_example.py", ranks(4, "sequence_parallel_example.py")),
    script("examples", "distributed/tensor_parallelism/fsdp_tp_example.py", ranks(4, "fsdp_tp_example.py")),
    script("examples", "distributed/minGPT-ddp/mingpt/main.py", ranks(2, "main.py", "data_config.path={data}/text.txt",
                                                                      "trainer_config.max_epochs=1")),
    script("examples", "imagenet/main.py", ["python", "main.py", "--dummy", "-a", "resnet50", "-j", "0", "-b", "64", "--epochs", "1"]),
    script("examples", "word_language_model/main.py", ["python", "main.py", "--accel", "--data", "{data}/corpus", "--epochs", "1",
                                                       "--save", "{out}/model.pt", "--model", "Transformer"]),
    script("examples", "mnist/main.py", ["python", "main.py", "--epochs", "1"]),
    script("examples", "distributed/FSDP/T5_training.py", ranks(2, "T5_training.py")),
    script("torchtitan", "torchtitan/train.py",
           ranks(8, "-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_debugmodel"), folder="."),
    script("transformers", "examples/pytorch/language-modeling/run_clm.py",
           ["python", "run_clm.py", "--model_name_or_path", MODEL, "--train_file", "{data}/text.txt", "--do_train", "--block_size", "512",
            *SHORT]),
    script("transformers", "examples/pytorch/language-modeling/run_clm.py",
           ranks(4, "run_clm.py", "--model_name_or_path", MODEL, "--train_file", "{data}/text.txt", "--do_train", "--bf16",
                 "--gradient_checkpointing", "--fsdp", "full_shard auto_wrap", *SHORT)),
    script("trl", "trl/scripts/sft.py", ["python", "sft.py", "--model_name_or_path", MODEL, "--dataset_name", "{data}/talks", *SHORT]),
    script("trl", "trl/scripts/dpo.py", ["accelerate", "launch", "--multi_gpu", "--num_processes", "2", "dpo.py", "--model_name_or_path",
                                         MODEL, "--dataset_name", "{data}/pairs", *SHORT]),
    script("trl", "trl/scripts/reward.py", ["python", "reward.py", "--model_name_or_path", MODEL, "--dataset_name", "{data}/choices",
                                            *SHORT]),
    script("trl", "trl/scripts/kto.py", ["python", "kto.py", "--model_name_or_path", MODEL, "--dataset_name", "{data}/marks", *SHORT]),
    script("trl", "trl/scripts/grpo.py", ["python", "grpo.py", "--model_name_or_path", MODEL, "--dataset_name", "{data}/prompts",
                                          "--reward_funcs", "think_format_reward", "--max_completion_length", "16", *SHORT]),
    script("peft", "examples/sft/train.py",
           ["python", "train.py", "--model_name_or_path", MODEL, "--dataset_name", "{data}/talks", "--use_peft_lora", "True",
            "--splits", "train,test", "--bf16", "True", *SHORT]),
    script("peft", "examples/olora_finetuning/olora_finetuning.py",
           ["python", "olora_finetuning.py", "--base_model", MODEL, "--data_path", "{data}/orders", "--output_dir", "{out}"]),
    script("accelerate", "examples/nlp_example.py", ["accelerate", "launch", "--num_processes", "1", "nlp_example.py"]),
    script("accelerate", "examples/cv_example.py",
           ["accelerate", "launch", "--num_processes", "1", "cv_example.py", "--data_dir", "{data}/pictures"]),
    script("accelerate", "examples/torch_native_parallelism/nd_parallel.py",
           ["accelerate", "launch", "--num_processes", "8", "nd_parallel.py", "--dp-replicate-size", "2", "--dp-shard-size", "4",
            "--model-name", MODEL]),
    script("DeepSpeedExamples", "training/bf16_master_weight/train.py",
           ranks(4, "train.py", "--deepspeed_config", "configs/baseline.json", "--num_steps", "6")),
    script("DeepSpeedExamples", "training/offload_states/offload_states.py",
           ranks(4, "offload_states.py", "--nlayers", "4", "--hidden_dim", "4096")),
    script("DeepSpeedExamples", "training/tensor_parallel/basic_example/autotp_example.py",
           ranks(4, "autotp_example.py", "--model_name", MODEL, "--tp_size", "2", "--dp_size", "2", "--seq_length", "512")),
    script("DeepSpeedExamples", "training/cifar/cifar10_deepspeed.py", ranks(2, "cifar10_deepspeed.py", "--epochs", "1")),
    script("DeepSpeedExamples", "training/pipeline_parallelism/train.py",
           ranks(2, "train.py", "--deepspeed_config", "ds_config.json", "-p", "2", "--steps", "5")),
    script("DeepSpeedExamples", "training/HelloDeepSpeed/train_bert_ds.py",
           ranks(2, "train_bert_ds.py", "--checkpoint_dir", "{out}")),
]
