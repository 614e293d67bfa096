/* blas_load.c -- finds cuBLASLt on this machine. */
#include <dlfcn.h>
#include <string.h>

#include "engine/cuda/blas.h"

static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

err_code blas_load(blas_api *out, err *e)
{
    void *lib = NULL;
    for (size_t i = 0; !lib && i < sizeof(names) / sizeof(names[0]); i++) {
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (!lib) return err_set(e, ERR_UNSUPPORTED, "cuBLAS is not installed: %s", dlerror());
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"cublasLtCreate", &out->create},
        {"cublasLtDestroy", &out->destroy},
        {"cublasLtGetVersion", &out->version},
        {"cublasLtMatmulDescCreate", &out->desc_create},
        {"cublasLtMatmulDescDestroy", &out->desc_destroy},
        {"cublasLtMatmulDescSetAttribute", &out->desc_set},
        {"cublasLtMatrixLayoutCreate", &out->layout_create},
        {"cublasLtMatrixLayoutDestroy", &out->layout_destroy},
        {"cublasLtMatrixLayoutSetAttribute", &out->layout_set},
        {"cublasLtMatmulPreferenceCreate", &out->pref_create},
        {"cublasLtMatmulPreferenceDestroy", &out->pref_destroy},
        {"cublasLtMatmulPreferenceSetAttribute", &out->pref_set},
        {"cublasLtMatmulAlgoGetHeuristic", &out->heuristic},
        {"cublasLtMatmulAlgoConfigGetAttribute", &out->config_get},
        {"cublasLtMatmul", &out->matmul},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *f = dlsym(lib, wanted[i].name);
        if (!f) return err_set(e, ERR_UNSUPPORTED, "cuBLAS has no %s", wanted[i].name);
        memcpy(wanted[i].to, &f, sizeof(f)); /* POSIX: a void * holds a function's address */
    }
    return ERR_NONE; /* stays open as long as the process */
}
