"""Errors of the CUDA and HIP run time and of the libraries on it: allocation failures without a size,
library handles, faults of kernels and of the hardware, and host allocations that PyTorch reports."""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.readers.signature import signature, table_reader

_SZ: Final = r"[\d.]+ ?[KMGT]i?B"
_NO_SIZE: Final = (
    signature("cuda_oom", "cumem_allocator", r"out of memory at .{0,200}cumem_allocator", where="cumem"),
    signature(
        "cuda_oom", "wake_up method failed", r"wake_up method failed: CUDA.{0,20}out of", where="cumem"
    ),
    signature(
        "cuda_oom",
        "CUDA error: out of memory",
        r"CUDA error: out of memory",
        where="runtime",
    ),
    signature("cuda_oom", "HIP error: out of memory", r"HIP error: out of memory", where="runtime"),
    signature(
        "cuda_oom", "CUDA driver error: out of memory", r"CUDA driver error: out of memory", where="driver"
    ),
    signature(
        "cuda_oom", "Triton Error [CUDA]: out of memory", r"Triton Error \[CUDA\]: out of", where="triton"
    ),
    signature(
        "cuda_oom",
        "CUDA_ERROR_OUT_OF_MEMORY",
        r"alloc (?P<requested__B>\d+) bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
        where="pinned",
    ),
    signature(
        "cuda_oom",
        "Error 2: out of memory",
        r"Error 2: out of memory",
        where="init",
    ),
    signature(
        "cuda_oom", "cuda runtime error (2)", r"cuda runtime error \(2\) : out of memory", where="runtime"
    ),
    signature(
        "cuda_oom",
        "Out of memory error on GPU",
        r"Out of memory error on GPU \d+\. Cannot allocate [\d.]+ ?[MG]i?B",
        where="runtime",
    ),
    signature(
        "cuda_oom", "isn't enough and alloc failed", r"memory isn't enough and alloc fail", where="runtime"
    ),
    signature("cuda_oom", "cudaErrorMemoryAllocation", r"cudaErrorMemoryAllocation", where="runtime"),
    signature(
        "cuda_oom", "CUDA_ERROR_OUT_OF_MEMORY", r"(?<!on host: )CUDA_ERROR_OUT_OF_MEMORY", where="driver"
    ),
    signature(
        "cuda_oom", "Runtime Error: out of memory", r"CUDA Runtime Error: out of memory", where="runtime"
    ),
    signature(
        "nvml_assert",
        "CUDACachingAllocator",
        r"NVML_SUCCESS == (?:r|DriverAPI\S{0,80}) ?INTERNAL ASSERT FAILED",
    ),
    signature("nvml_assert", "NVML_SUCCESS == ", r"NVML_SUCCESS == .{0,120}CUDACachingAllocator"),
)
_LIBRARY: Final = (
    signature(
        "library_alloc_failed", "CUBLAS_STATUS_ALLOC_FAILED", r"CUBLAS_STATUS_ALLOC_FAILED", library="cuBLAS"
    ),
    signature(
        "library_alloc_failed", "cublas handle failed", r"[Cc]reate cublas handle failed", library="cuBLAS"
    ),
    signature(
        "library_alloc_failed",
        "CUBLAS_STATUS_NOT_INITIALIZED",
        r"CUBLAS_STATUS_NOT_INITIALIZED",
        library="cuBLAS",
        unclear="CUBLAS_STATUS_NOT_INITIALIZED",
    ),
    signature(
        "library_alloc_failed", "CUDNN_STATUS_ALLOC_FAILED", r"CUDNN_STATUS_ALLOC_FAILED", library="cuDNN"
    ),
    signature(
        "library_alloc_failed",
        "CUDNN_STATUS_NOT_INITIALIZED",
        r"CUDNN_STATUS_NOT_INITIALIZED",
        library="cuDNN",
        unclear="CUDNN_STATUS_NOT_INITIALIZED",
    ),
    signature(
        "library_alloc_failed",
        "CUDNN_STATUS_INTERNAL_ERROR",
        r"CUDNN_STATUS_INTERNAL_ERROR",
        library="cuDNN",
        unclear="CUDNN_STATUS_INTERNAL_ERROR",
    ),
    signature(
        "library_alloc_failed",
        "Unable to find a valid cuDNN algorithm",
        r"Unable to find a valid cuDNN",
        library="cuDNN",
        unclear="no algorithm had the workspace it needs",
    ),
    signature(
        "library_alloc_failed", "CUSOLVER_STATUS_ALLOC", r"CUSOLVER_STATUS_ALLOC_FAILED", library="cuSOLVER"
    ),
    signature("library_alloc_failed", "CUFFT_ALLOC_FAILED", r"CUFFT_ALLOC_FAILED", library="cuFFT"),
    signature(
        "library_alloc_failed", "CURAND_STATUS_ALL", r"CURAND_STATUS_ALLOCATION_FAILED", library="cuRAND"
    ),
    signature(
        "library_alloc_failed", "CUSPARSE_STATUS_INSUFF", r"CUSPARSE_STATUS_INSUFF", library="cuSPARSE"
    ),
    signature(
        "library_alloc_failed", "HIPBLAS_STATUS_ALLOC_FAILED", r"HIPBLAS_STATUS_ALLOC_", library="hipBLAS"
    ),
    signature(
        "library_alloc_failed", "rocblas_status_memory_error", r"rocblas_status_mem", library="rocBLAS"
    ),
)
_FAULTS: Final = (
    signature("gpu_fault", "illegal memory access", r"illegal memory access", kind="illegal memory access"),
    signature("gpu_fault", "uncorrectable ECC", r"uncorrectable ECC error", kind="ECC"),
    signature("gpu_fault", "uncorrectable NVLink", r"uncorrectable NVLink error", kind="NVLink"),
    signature(
        "gpu_fault", "unspecified launch failure", r"unspecified launch", kind="unspecified launch failure"
    ),
    signature("gpu_fault", "misaligned address", r"misaligned address", kind="misaligned address"),
    signature("gpu_fault", "illegal instruction was", r"illegal instruction was", kind="illegal instruction"),
    signature("gpu_fault", "device-side assert triggered", r"device-side assert", kind="device-side assert"),
    signature("gpu_fault", "Memory access fault by GPU", r"Memory access fault by GPU", kind="page fault"),
    signature("gpu_fault", "GPU has fallen off the bus", r"fallen off the bus", kind="off the bus"),
    signature("gpu_fault", "HSA_STATUS_ERROR_EXCEPTION", r"HSA_STATUS_ERROR_EXCEPTION", kind="HSA exception"),
    signature(
        "gpu_fault", "CUBLAS_STATUS_EXECUTION_FAILED", r"CUBLAS_STATUS_EXECUTION", kind="cuBLAS execution"
    ),
    signature(
        "gpu_unusable",
        "no kernel image is available",
        r"no kernel image is available",
        kind="no kernel image",
    ),
    signature(
        "gpu_unusable", "driver version is insufficient", r"driver version is insuff", kind="old driver"
    ),
    signature("gpu_unusable", "invalid device ordinal", r"invalid device ordinal", kind="no such device"),
    signature("gpu_unusable", "no CUDA-capable device", r"no CUDA-capable device", kind="no device"),
    signature("gpu_unusable", "Found no NVIDIA driver", r"Found no NVIDIA driver", kind="no driver"),
    signature(
        "gpu_unusable",
        "out of resource: shared memory",
        r"out of resource: shared memory, Required: (?P<needed__B>\d+), Hardware limit: (?P<limit__B>\d+)",
        kind="a kernel's shared memory",
    ),
    signature(
        "gpu_unusable",
        "Hardware limit:",
        r"out of resource: (?!shared memory)\w{1,80},? Required: (?P<needed__B>\d+),? Hardware limit: ?"
        r"(?P<limit__B>\d+)",
        kind="a kernel's shared memory",
    ),
)
_HOST: Final = (
    signature(
        "cpu_oom",
        "you tried to allocate",
        r"(?:can't allocate memory|not enough memory): you tried to allocate (?P<requested__B>\d+) bytes",
    ),
    signature(
        "cpu_oom",
        "Unable to allocate",
        rf"Unable to allocate (?P<requested__size>{_SZ}) for an array",
    ),
    signature("cpu_oom", "posix_memalign(&data", r"posix_memalign\(&data.{0,60} == 0\. 12 vs 0"),
    signature("cpu_oom", "Cannot allocate memory", r"^(?!.{0,60}mlock).*Cannot allocate memory"),
    signature("cpu_oom", "paging file is too small", r"paging file is too small"),
    signature("cpu_oom", "std::bad_alloc", r"std::bad_alloc(?!.{0,80}(?:CUDA|cuda))"),
    signature("cpu_oom", "DefaultCPUAllocator: not enough memory", r"not enough memory:(?! you tried)"),
    *(
        signature("accelerator_oom", anchor, pattern, backend="cann")
        for anchor, pattern in (
            ("aclrtMalloc", r"aclrtMalloc\w* fail"),
            ("EL0004", r"EL0004: .{0,20}(?:[Ff]ailed to allocate|memory allocation)"),
        )
    ),
    signature(
        "accelerator_oom",
        "RESOURCE_EXHAUSTED",
        r"RESOURCE_EXHAUSTED:.{0,120}(?:allocate|allocating) (?P<requested__B>\d+)(?: bytes)?",
        backend="xla",
    ),
    signature(
        "xpu_block_limit",
        "can NOT allocate memory block",
        r"block with size larger than (?P<limit__size>[\d.]+ ?GB)",
    ),
    signature(
        "xpu_block_limit",
        "max alloc size supported by device",
        r"max alloc size supported by device is (?P<limit__B>\d+)",
    ),
    signature(
        "xpu_block_limit",
        "Invalid buffer size: ",
        r"Invalid buffer size: [\d.]+ ?[GT]i?B",
        unsized="Metal",
    ),
    signature(
        "xpu_block_limit",
        "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        r"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY|UR_RESULT_ERROR_OUT_OF_RESOURCES",
        unsized="level zero",
    ),
)

READERS: Final = (table_reader("cuda_errors", None, (*_NO_SIZE, *_LIBRARY, *_FAULTS, *_HOST)),)
