/* choices.h -- which of several kernels with equal bits makes a product, by device.
 *
 * Written by tests/gpu/choices.py from a run of tests/gpu/run.sh on a device: run that, and edit
 * nothing here.  Figures that no device has measured are marked.  A device takes the last line
 * whose capability it has.
 */
#ifndef ENGINE_CUDA_PRODUCTS_CHOICES_H
#define ENGINE_CUDA_PRODUCTS_CHOICES_H

#include "engine/cuda/products/blas.h"

static const blas_choice blas_choices[] = {
    /* capability; rows up to which one chain is ours, and LoRA is inside; rows from which codes
     * become plain slices */
    {80, 0, 0, 0},      /* no streams, no wgmma */
    {90, 64, 64, 1024}, /* H200: chain measured; inside estimated; slices estimated */
};

#endif
