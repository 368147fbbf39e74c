// C interface of the native kernel of factored group attention. Tensors are contiguous, Real, the indices int32; the
// images of query, key and value may lie apart.
#pragma once
#include <stdint.h>

#ifndef GEVIT_REAL
#define GEVIT_REAL float  // or double: the precision is chosen when the kernel is compiled
#endif
typedef GEVIT_REAL Real;

#define GEVIT_EXPORT __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int64_t batch, channels, heads, outputs, queries, keys, height, width, neighborhood;
    int64_t space_rows, space_channels, element_rows, element_channels;
    int64_t in_channels, out_channels;               // of a layer
    int64_t query_stride, key_stride, value_stride;  // from one image to the next
    int64_t own;          // 1: output element h meets only query element h
    int64_t threads;
    int64_t first_image;  // where these images begin in the batch that dropout counts
    uint64_t seed;        // of dropout
    double scale, dropout;
} gevit_shape;

enum { GEVIT_OK = 0, GEVIT_OUT_OF_MEMORY = 1, GEVIT_BAD_SHAPE = 2 };

// query [B,C,N,Q,P], key and value [B,C,N,M,P], space [U,Cs], element [E,Ce],
// offset_index [V,n*n] rows of space, element_index [V,Q (1 if own),M] rows of element  ->  out [B,C,N,V,P]
GEVIT_EXPORT int gevit_attend_forward(const Real* query, const Real* key, const Real* value, const Real* space,
                                      const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                      Real* out, const gevit_shape* shape);

// Gradients of all inputs, from the inputs and the gradient of out; every result is overwritten.
GEVIT_EXPORT int gevit_attend_backward(const Real* query, const Real* key, const Real* value, const Real* space,
                                       const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                       const Real* grad_out, Real* grad_query, Real* grad_key, Real* grad_value,
                                       Real* grad_space, Real* grad_element, const gevit_shape* shape);

// A whole layer: its linear maps make queries, keys and values of a signal, and its output of all heads.
// signal [B,Ci,M,P], weight [3,C*N,Ci], bias [3,C*N], out_weight [Co,C*N], out_bias [Co]
// ->  mixed [B,C,N,V,P], the result of attention, which the backward pass reads, and out [B,Co,V,P]
GEVIT_EXPORT int gevit_layer_forward(const Real* signal, const Real* weight, const Real* bias, const Real* out_weight,
                                     const Real* out_bias, const Real* space, const Real* element,
                                     const int32_t* offset_index, const int32_t* element_index, Real* mixed, Real* out,
                                     const gevit_shape* shape);

// Gradients of all inputs but out_bias, whose gradient is the sum of that of out; every result is overwritten.
GEVIT_EXPORT int gevit_layer_backward(const Real* signal, const Real* weight, const Real* bias, const Real* out_weight,
                                      const Real* out_bias, const Real* space, const Real* element,
                                      const int32_t* offset_index, const int32_t* element_index, const Real* mixed,
                                      const Real* grad_out, Real* grad_signal, Real* grad_weight, Real* grad_bias,
                                      Real* grad_out_weight, Real* grad_space, Real* grad_element,
                                      const gevit_shape* shape);

#ifdef __cplusplus
}
#endif
