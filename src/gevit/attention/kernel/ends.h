// How signals get to a task, one head of one image, and how its gradients leave it: as tensors of queries, keys and
// values or, in a layer, through its linear maps.
#pragma once
#include "maps.h"
#include "workspace.h"

namespace gevit {

// Of a tensor [batch, channels, heads, elements, pixels], the part of a task.
template <class Number>
View<Number> part_of(Number* tensor, const Problem& p, int64_t task, int elements, int64_t image_stride) {
    return {tensor + p.plane(task, 0, elements, 0, image_stride), ptrdiff_t(p.heads) * elements * p.pixels, p.pixels};
}

template <class Number>
View<Number> part_of(Number* tensor, const Problem& p, int64_t task, int elements) {
    return part_of(tensor, p, task, elements, p.stride(elements));
}

// Where gradients go: those of query, key and value or, in a layer, of one head's part of the signal and of the maps.
struct Gradients {
    const Real *out, *mixed;
    Real *query, *key, *value, *signal_parts;
};

class Ends : public Workspace {
  public:
    using Workspace::Workspace;

    // Of the maps of a head, sums over its tasks: [3][channel][in], [3][channel], [out][channel].
    Real *weight_gradient_of_head, *bias_gradient_of_head, *out_weight_gradient_of_head;

  protected:
    void take(int64_t task) {
        if (in_.layer) {
            take_head(int(task % p_.heads));
            for (int m = 0; m < p_.keys; ++m)
                map(weight_of_head_, in_channels(task, m), channels(queries_, m, 3), p_.pixels,
                    [&](int row, int, int) { return splat(bias_of_head_[row]); });
            query_of_task_ = inner(queries_);
        } else {
            query_of_task_ = part_of(in_.query, p_, task, p_.queries, p_.query_stride);
            copy(part_of(in_.key, p_, task, p_.keys, p_.key_stride), inner(key_), p_.keys);
            copy(part_of(in_.value, p_, task, p_.keys, p_.value_stride), inner(value_), p_.keys);
        }
        key_norm_ = largest_norm(key_);
        small_ = small_positions_ = true;
    }

    // The gradient of what attention gives to this task.
    View<const Real> take_gradient(const Gradients& gradients, int64_t task) {
        if (!in_.layer) return part_of(gradients.out, p_, task, p_.outputs);
        for (int h = 0; h < p_.outputs; ++h)
            map(out_weight_transposed_, out_channels(gradients.out, task, h), channels(out_gradients_, h), p_.pixels,
                nothing);
        const View<const Real> mixed = part_of(gradients.mixed, p_, task, p_.outputs);
        correlate(out_channels(gradients.out, task, 0), p_.pixels, {mixed.data, mixed.next_channel, p_.channels},
                  mixed.next_element, p_.outputs, p_.pixels, sums_, out_weight_gradient_of_head);
        return inner(out_gradients_);
    }

    View<Real> query_gradient_of(const Gradients& gradients, int64_t task) const {
        return in_.layer ? inner(query_gradients_) : part_of(gradients.query, p_, task, p_.queries);
    }

    void give_gradients(const Gradients& gradients, int64_t task) {
        if (!in_.layer) {
            copy(inner(key_gradient_), part_of(gradients.key, p_, task, p_.keys), p_.keys);
            copy(inner(value_gradient_), part_of(gradients.value, p_, task, p_.keys), p_.keys);
            return;
        }
        const ptrdiff_t pitch = ptrdiff_t(p_.keys) * p_.pixels, next = query_gradients_.next_key;
        Real* const part = gradients.signal_parts + task * p_.in_channels * pitch;
        for (int m = 0; m < p_.keys; ++m)
            map(weight_transposed_, channels(query_gradients_, m, 3), {part + m * p_.pixels, pitch, p_.in_channels},
                p_.pixels, nothing);
        const Stack<const Real> projected = channels(query_gradients_, 0, 3);
        correlate(projected, next, in_channels(task, 0), p_.pixels, p_.keys, p_.pixels, sums_, weight_gradient_of_head);
        correlate(projected, next, {ones_, 0, 1}, 0, p_.keys, p_.pixels, sums_, bias_gradient_of_head);
    }

  private:
    // A function object, since a compiler may not see through the address of a function.
    static constexpr auto nothing = [](int, int, int) { return Vec{}; };

    template <class Number>
    void copy(View<Number> from, View<Real> to, int elements) const {
        for (int element = 0; element < elements; ++element)
            for (int channel = 0; channel < p_.channels; ++channel)
                std::memcpy(to.at(channel, element), from.at(channel, element), p_.pixels * sizeof(Real));
    }

    View<Real> inner(const Planes& planes) const {
        return {planes.data + p_.guard, planes.pitch, planes.next_key};
    }

    // The channels of an element, and of the sets of planes that lie beside these.
    Stack<Real> channels(const Planes& planes, int element, int sets = 1) const {
        return {planes.at(element, 0) + p_.guard, planes.pitch, sets * planes.channels};
    }

    Stack<const Real> in_channels(int64_t task, int m) const {
        const ptrdiff_t pitch = ptrdiff_t(p_.keys) * p_.pixels;
        return {in_.layer->signal + task / p_.heads * p_.in_channels * pitch + m * p_.pixels, pitch, p_.in_channels};
    }

    Stack<const Real> out_channels(const Real* out, int64_t task, int h) const {
        const ptrdiff_t pitch = ptrdiff_t(p_.outputs) * p_.pixels;
        return {out + task / p_.heads * p_.out_channels * pitch + h * p_.pixels, pitch, p_.out_channels};
    }

    // Channel c of head n is row c * heads + n of the maps.
    void take_head(int head) {
        const Layer& layer = *in_.layer;
        const int ins = p_.in_channels, outs = p_.out_channels;
        for (int row = 0; row < 3 * p_.channels; ++row) {
            const ptrdiff_t from = ptrdiff_t(row) * p_.heads + head;
            std::memcpy(weight_of_head_ + ptrdiff_t(row) * ins, layer.weight + from * ins, ins * sizeof(Real));
            bias_of_head_[row] = layer.bias[from];
        }
        if (!backward_) return;
        for (int row = 0; row < 3 * p_.channels; ++row)
            for (int i = 0; i < ins; ++i)
                weight_transposed_[ptrdiff_t(i) * 3 * p_.channels + row] = weight_of_head_[ptrdiff_t(row) * ins + i];
        for (int c = 0; c < p_.channels; ++c)
            for (int o = 0; o < outs; ++o)
                out_weight_transposed_[ptrdiff_t(c) * outs + o] =
                    layer.out_weight[(ptrdiff_t(o) * p_.channels + c) * p_.heads + head];
        std::fill_n(ones_, p_.pixels, Real(1));
    }
};

}  // namespace gevit
