/* blas_load.c -- finds cuBLASLt on this machine. */
#include <dlfcn.h>
#include <string.h>

#include "engine/cuda/products/blas.h"

/* By the version that the runtime linked here belongs to, then what also speaks this interface. */
static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

static err_code resolve(blas_api *out, void *lib, const char *file, err *e)
{
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
        if (!f) {
            return err_set(e, ERR_UNSUPPORTED, "%s has no %s: cuBLAS 12 or newer is needed", file,
                           wanted[i].name);
        }
        memcpy(wanted[i].to, &f, sizeof(f)); /* POSIX: a void * holds a function's address */
    }
    return ERR_NONE;
}

err_code blas_load_from(blas_api *out, const char *const *files, int n, err *e)
{
    char why[96] = "";
    for (int i = 0; i < n; i++) {
        void *lib = dlopen(files[i], RTLD_NOW | RTLD_LOCAL);
        if (lib) {
            err_code rc = resolve(out, lib, files[i], e);
            if (rc) (void)dlclose(lib);
            return rc; /* else it stays open as long as the process */
        }
        const char *said = dlerror();
        if (!why[0] && said) {
            strncpy(why, said, sizeof(why) - 1);
        }
    }
    return err_set(e, ERR_UNSUPPORTED,
                   "cuBLAS is not installed (%s): install libcublas-13-0 (NVIDIA's Debian package) "
                   "or nvidia-cublas "
                   "(Python's, its lib folder in LD_LIBRARY_PATH)",
                   why);
}

err_code blas_load(blas_api *out, err *e)
{
    return blas_load_from(out, names, (int)(sizeof(names) / sizeof(names[0])), e);
}
