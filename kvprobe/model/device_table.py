"""The table of GPUs: memory, bandwidth, peak arithmetic. Data only; `devices.py` looks things up.

Columns: name | other spellings | memory as marketed | what CUDA or ROCm reports as total, in GiB, as engines
and PyTorch print it ("total capacity of 79.25 GiB") | what nvidia-smi reports, in MiB | bandwidth in GB/s |
dense peak in TFLOP/s for bf16 | fp8 | fp4 | the vendor's data sheet, or white paper. Empty: not known. Where
a data sheet gives only figures with sparsity they are halved to dense, and the source says "(half)".

The reported totals are from public logs of engines and of out-of-memory messages; `?` marks one that is
commonly reported but was not looked up again. They vary by some tenths of a GiB with driver, ECC and board:
a budget that must be exact takes `--gpu SIZE` from the machine itself.
"""

WHITE_PAPERS = {
    "AMPERE": "NVIDIA Ampere GA102 architecture white paper",
    "ADA": "NVIDIA Ada GPU architecture white paper",
    "RTX50": "NVIDIA RTX Blackwell GPU architecture white paper",
}

TABLE = """
# NVIDIA, data centre
A100 SXM 40GB | a100 40gb,a100 40 | 40 GB | 39.5 | 40960 | 1555 | 312 | | | A100
A100 PCIe 40GB | | 40 GB | 39.39 | 40960 | 1555 | 312 | | | A100
A100 SXM 80GB | a100 80gb,a100 80 | 80 GB | 79.25 | 81920 | 2039 | 312 | | | A100
A100 PCIe 80GB | | 80 GB | 79.25? | 81920 | 1935 | 312 | | | A100
A800 80GB | a800 | 80 GB | 79.25? | 81920 | 2039 | 312 | | | A800
A30 | a30 24gb | 24 GB | | 24576 | 933 | 165 | | | A30
A10 | a10 24gb | 24 GB | 22.06? | 23028 | 600 | 125 | | | A10
A10G | a10g 24gb | 24 GB | 22.06 | 23028 | 600 | 70 | | | A10G
A16 | | 16 GB | | | 200 | | | | A16
A2 | | 16 GB | | | 200 | 18 | | | A2
A40 | a40 48gb | 48 GB | 44.43? | 46068 | 696 | 149.7 | | | A40
L4 | l4 24gb | 24 GB | 22.03 | 23034 | 300 | 121 | 242.5 | | L4 (half)
L20 | l20 48gb | 48 GB | | 46068 | 864 | 119.5 | 239 | | L20
L40 | l40 48gb | 48 GB | 44.4? | 46068 | 864 | 181 | 362 | | L40
L40S | l40s 48gb | 48 GB | 44.42 | 46068 | 864 | 362 | 733 | | L40S
H100 SXM 80GB | h100,h100 80gb,h100 sxm | 80 GB | 79.11 | 81559 | 3350 | 989.4 | 1978.9 | | H100 (half)
H100 PCIe 80GB | h100 pcie | 80 GB | 79.11 | 81559 | 2039 | 756 | 1513 | | H100 (half)
H100 NVL 94GB | h100 nvl | 94 GB | 93.1? | 95830 | 3938 | 835.5 | 1670.5 | | H100 NVL (half)
H800 80GB | h800 | 80 GB | 79.11? | 81559 | 3350 | 989.4 | 1978.9 | | H800 (half)
H200 SXM 141GB | h200,h200 141gb,h200 sxm | 141 GB | 139.81 | 143771 | 4800 | 989.4 | 1978.9 | | H200 (half)
H200 NVL 141GB | h200 nvl | 141 GB | 139.81? | 143771 | 4800 | 835.5 | 1670.5 | | H200 (half)
H20 96GB | h20 | 96 GB | 95.22? | 97871 | 4000 | 148 | 296 | | H20
H20 141GB | h20 3e | 141 GB | | 143771 | 4800 | 148 | 296 | | H20
GH200 96GB | | 96 GB | 94.5? | 97871 | 4000 | 989.4 | 1978.9 | | GH200 (half)
GH200 144GB | | 144 GB | | | 4900 | 989.4 | 1978.9 | | GH200 (half)
B200 180GB | b200 | 180 GB | 178.35 | 183359 | 7700 | 2250 | 4500 | 9000 | HGX B200 (half)
B300 288GB | b300 | 288 GB | | 275040 | 8000 | 2250 | 4500 | 13500 | HGX B300 (half)
GB200 186GB | gb200 | 186 GB | | 189471 | 8000 | 2500 | 5000 | 10000 | GB200 NVL72 (half)
GB300 288GB | gb300 | 288 GB | | | 8000 | 2500 | 5000 | 15000 | GB300 NVL72 (half)
V100 16GB | | 16 GB | 15.77 | 16160 | 900 | | | | V100
V100 32GB | | 32 GB | 31.74 | 32510 | 900 | | | | V100
T4 | t4 16gb | 16 GB | 14.58 | 15360 | 320 | | | | T4
P40 | p40 24gb | 24 GB | 23.87? | 24576 | 346 | | | | P40
P100 16GB | p100 | 16 GB | 15.89 | 16384 | 732 | | | | P100
# NVIDIA, workstation
RTX A6000 | a6000,a6000 48gb | 48 GB | 47.54? | 49140 | 768 | 154.8 | | | AMPERE
RTX A5000 | a5000,a5000 24gb | 24 GB | 23.57 | 24564 | 768 | 111.1 | | | AMPERE
RTX A4000 | a4000,a4000 16gb | 16 GB | 15.73? | 16376 | 448 | 76.7 | | | AMPERE
RTX 6000 Ada | 6000 ada,rtx 6000 ada generation | 48 GB | 47.5? | 49140 | 960 | 364.2 | 728.5 | | ADA
RTX 5000 Ada | 5000 ada,rtx 5000 ada generation | 32 GB | | 32760 | 576 | | | | ADA
RTX 4000 Ada | 4000 ada,rtx 4000 ada generation | 20 GB | | 20475 | 360 | | | | ADA
RTX PRO 6000 Blackwell | rtx pro 6000 | 96 GB | 94.97? | 97887 | 1792 | 503.8 | 1007.6 | 2015.2 | RTX50
RTX PRO 6000 Blackwell Server | pro 6000 server | 96 GB | 94.97 | 97887 | 1597 | | | | PRO 6000 Server
RTX PRO 5000 Blackwell | rtx pro 5000 | 48 GB | | | 1344 | | | | RTX50
# NVIDIA, consumer
RTX 5090 | 5090 | 32 GB | 31.36 | 32607 | 1792 | 209.5 | 419 | 1676 | RTX50
RTX 5080 | 5080 | 16 GB | 15.47? | 16303 | 960 | 112.6 | 225.1 | 900.4 | RTX50
RTX 5070 Ti | 5070 ti | 16 GB | 15.47? | 16303 | 896 | 87.9 | 175.8 | 703 | RTX50
RTX 5070 | 5070 | 12 GB | | 12227 | 672 | 61.7 | 123.5 | 493.9 | RTX50
RTX 5060 Ti 16GB | | 16 GB | 15.47? | 16311 | 448 | | | | RTX50
RTX 5060 Ti 8GB | | 8 GB | | 8151 | 448 | | | | RTX50
RTX 5060 | 5060 | 8 GB | | 8151 | 448 | | | | RTX50
RTX 4090 | 4090 | 24 GB | 23.64 | 24564 | 1008 | 165.2 | 330.3 | | ADA
RTX 4080 SUPER | 4080 super | 16 GB | 15.7? | 16376 | 736 | | | | ADA
RTX 4080 | 4080 | 16 GB | 15.7? | 16376 | 716.8 | 97.5 | 194.9 | | ADA
RTX 4070 Ti SUPER | 4070 ti super | 16 GB | 15.7? | 16376 | 672 | | | | ADA
RTX 4070 Ti | 4070 ti | 12 GB | 11.72? | 12282 | 504 | | | | ADA
RTX 4070 | 4070 | 12 GB | 11.72? | 12282 | 504 | | | | ADA
RTX 4060 Ti 16GB | | 16 GB | 15.7? | 16380 | 288 | | | | ADA
RTX 4060 Ti 8GB | | 8 GB | 7.63? | 8188 | 288 | | | | ADA
RTX 4060 | 4060 | 8 GB | 7.63? | 8188 | 272 | | | | ADA
RTX 3090 Ti | 3090 ti | 24 GB | 23.69? | 24564 | 1008 | 80 | | | AMPERE
RTX 3090 | 3090 | 24 GB | 23.68 | 24576 | 936 | 71 | | | AMPERE
RTX 3080 12GB | | 12 GB | | 12288 | 912 | | | | AMPERE
RTX 3080 10GB | | 10 GB | 9.77 | 10240 | 760 | 59.5 | | | AMPERE
RTX 3060 12GB | 3060,rtx 3060 | 12 GB | 11.76 | 12288 | 360 | | | | AMPERE
RTX 2080 Ti | 2080 ti | 11 GB | 10.76 | 11264 | 616 | | | | Turing white paper
# AMD; a "GB" of its data sheets is a GiB of memory
MI210 | mi210 64gb | 64 GB | 63.98? | | 1638 | 181 | | | MI210
MI250 (one of two GPUs) | mi250,mi250 64gb | 64 GB | 63.98 | | 1638 | 181 | | | MI250 (half of the module)
MI250X (one of two GPUs) | mi250x | 64 GB | 63.98 | | 1638 | 191.5 | | | MI250X (half of the module)
MI300A | mi300a 128gb | 128 GB | | | 5300 | 980.6 | 1961.2 | | MI300A
MI300X | mi300x 192gb | 192 GB | 191.98 | | 5300 | 1307.4 | 2614.9 | | MI300X
MI308X | mi308x 192gb | 192 GB | 191.98? | | 5300 | | | | MI308X
MI325X | mi325x 256gb | 256 GB | 255.98 | | 6000 | 1307.4 | 2614.9 | | MI325X
MI350X | mi350x 288gb | 288 GB | 287.98? | | 8000 | 2300 | 4600 | 9200 | MI350X
MI355X | mi355x 288gb | 288 GB | 287.98 | | 8000 | 2500 | 5000 | 10000 | MI355X
RX 7900 XTX | 7900 xtx | 24 GB | 23.98 | | 960 | 122.8 | | | Radeon RX 7900 XTX
PRO W7900 | w7900 | 48 GB | 47.98 | | 864 | 122.6 | | | Radeon PRO W7900
AI PRO R9700 | r9700 | 32 GB | | | 640 | | | | Radeon AI PRO R9700
# Intel
Gaudi 2 | gaudi2 | 96 GB | | | 2450 | 432 | 865 | | Gaudi 2 white paper
Gaudi 3 | gaudi3 | 128 GB | | | 3700 | 1835 | 1835 | | Gaudi 3 white paper
Arc Pro B60 | b60 | 24 GB | | | 456 | | | | Arc Pro B60
# Unified memory: the operating system and every process share it
DGX Spark | gb10,spark | 128 GB unified | 119.7? | | 273 | | | 500 | DGX Spark (half)
Jetson AGX Thor | jetson thor,thor | 128 GB unified | 122.82 | | 273 | | 517.5 | 1035 | Jetson T5000 (half)
Jetson AGX Orin 64GB | jetson agx orin,orin | 64 GB unified | 61.4 | | 204.8 | | | | Jetson AGX Orin
Ryzen AI Max+ 395 | strix halo | 128 GB unified | | | 256 | | | | Ryzen AI Max+ 395 specification
"""
