// The C interface: threads, the order of sums, and errors as numbers.
#include <atomic>

#include "worker.h"

namespace gevit {
namespace {

// Runs body(worker, i) for i in [0, count) on all threads, each with a worker of its own.
template <int Order, class Body>
int with_workers(const Problem& problem, const Inputs& inputs, bool backward, int64_t count, Body&& body) {
    std::atomic<bool> failed{false};
#pragma omp parallel num_threads(int(std::min<int64_t>(problem.threads, count)))
    {
        const FlushDenormals flush;
        Worker<Order> worker(problem, inputs, backward);
        if (!worker.usable()) failed = true;
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; ++i)
            if (!failed) body(worker, i);
    }
    return failed ? GEVIT_OUT_OF_MEMORY : GEVIT_OK;
}

template <class Body>
int in_parallel(const Problem& problem, const Inputs& inputs, bool backward, int64_t count, Body&& body) {
    switch (problem.common_order()) {
        case 1: return with_workers<1>(problem, inputs, backward, count, body);
        case 4: return with_workers<4>(problem, inputs, backward, count, body);
        case 8: return with_workers<8>(problem, inputs, backward, count, body);
        default: return with_workers<0>(problem, inputs, backward, count, body);
    }
}

// What a head's tasks give to the gradients that all pixels share: of the tables, and of the maps of a layer.
struct Shared {
    size_t space, element, weight, bias, out_weight;
    Shared(const Problem& p, bool layer)
        : space(size_t(p.space_rows) * p.space_channels), element(size_t(p.element_rows) * p.element_channels),
          weight(layer ? 3 * size_t(p.channels) * p.in_channels : 0), bias(layer ? 3 * size_t(p.channels) : 0),
          out_weight(layer ? size_t(p.out_channels) * p.channels : 0) {}
    size_t total() const { return space + element + weight + bias + out_weight; }
};

// A group is the tasks of one head for some images, one after the other. Groups are summed in a fixed order, so that the
// result does not depend on the number of threads. They depend on the shape only, and bound the memory.
struct Groups {
    const Problem& p;
    const size_t numbers;  // of each
    const int64_t parts;   // of the batch
    std::vector<Real> sums;

    Groups(const Problem& problem, size_t numbers) : p(problem), numbers(numbers), parts(parts_of(problem, numbers)) {
        sums.resize(count() * numbers);
    }

    static int64_t parts_of(const Problem& p, size_t numbers) {
        constexpr int64_t MOST_NUMBERS = 1 << 23, MANY = 64;
        const int64_t heads = std::max(1, p.heads), each = heads * std::max<int64_t>(1, numbers);
        return std::min<int64_t>(p.batch, std::max((MANY + heads - 1) / heads, MOST_NUMBERS / each));
    }

    int64_t count() const { return parts * p.heads; }
    Real* at(int64_t group) { return sums.data() + group * numbers; }

    template <class Body>
    void for_each_task(int64_t group, Body&& body) const {
        const int64_t part = group / p.heads, head = group % p.heads;
        for (int64_t image = p.batch * part / parts; image < p.batch * (part + 1) / parts; ++image)
            body(image * p.heads + head);
    }

    // Sums of numbers from `begin` on: over all groups, or over those of one head.
    void sum(size_t begin, size_t many, Real* to) { add_up(begin, many, 0, 1, [=](size_t i) { return to + i; }); }

    template <class Place>
    void sum_of_heads(size_t begin, size_t many, Place&& place) {
        for (int head = 0; head < p.heads; ++head)
            add_up(begin, many, head, p.heads, [&](size_t i) { return place(head, i); });
    }

  private:
    template <class Place>
    void add_up(size_t begin, size_t many, int64_t first, int64_t step, Place&& place) {
        for (size_t i = begin; i < begin + many; ++i) {
            double total = 0;
            for (int64_t group = first; group < count(); group += step) total += at(group)[i];
            *place(i - begin) = Real(total);
        }
    }
};

// Backward passes of all tasks; what pixels share is left in groups.
int differentiate(const Problem& problem, const Inputs& inputs, const Gradients& gradients, Groups& groups) {
    const Shared shared(problem, inputs.layer != nullptr);
    if (groups.count() == 0) return GEVIT_OK;
    return in_parallel(problem, inputs, true, groups.count(), [&](auto& worker, int64_t group) {
        Real *const space = groups.at(group), *const element = space + shared.space;
        worker.weight_gradient_of_head = element + shared.element;
        worker.bias_gradient_of_head = worker.weight_gradient_of_head + shared.weight;
        worker.out_weight_gradient_of_head = worker.bias_gradient_of_head + shared.bias;
        std::fill_n(worker.space_table_gradient, shared.space, Vec{});
        std::fill_n(worker.element_table_gradient, shared.element, Vec{});
        groups.for_each_task(group, [&](int64_t task) {
            if (problem.drops) worker.template backward<true>(task, gradients);
            else worker.template backward<false>(task, gradients);
        });
        for (size_t i = 0; i < shared.space; ++i) space[i] = sum(worker.space_table_gradient[i]);
        for (size_t i = 0; i < shared.element; ++i) element[i] = sum(worker.element_table_gradient[i]);
    });
}

int attend(const Problem& problem, const Inputs& inputs, Real* out) {
    if (problem.tasks == 0) return GEVIT_OK;
    return in_parallel(problem, inputs, false, problem.tasks, [&](auto& worker, int64_t task) {
        if (problem.drops) worker.template forward<true>(task, out);
        else worker.template forward<false>(task, out);
    });
}

// out = out_weight mixed + out_bias
void merge_heads(const Problem& p, const Layer& layer, const Real* mixed, Real* out) {
    const int planes = p.channels * p.heads;
    const ptrdiff_t pitch = ptrdiff_t(p.outputs) * p.pixels;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t part = 0; part < int64_t(p.batch) * p.outputs; ++part) {
        const int64_t image = part / p.outputs, first = part % p.outputs * p.pixels;
        map(layer.out_weight, {mixed + image * planes * pitch + first, pitch, planes},
            {out + image * p.out_channels * pitch + first, pitch, p.out_channels}, p.pixels,
            [&](int row, int, int) { return splat(layer.out_bias[row]); });
    }
}

// The sum over heads of [batch, heads, size], always in the same order.
void sum_heads(const Problem& p, const Real* parts, Real* total) {
    const ptrdiff_t size = ptrdiff_t(p.in_channels) * p.keys * p.pixels;
    constexpr ptrdiff_t PIECE = 1024;
    const ptrdiff_t pieces = (size + PIECE - 1) / PIECE;
#pragma omp parallel for num_threads(p.threads)
    for (int64_t piece = 0; piece < p.batch * pieces; ++piece) {
        const ptrdiff_t image = piece / pieces, begin = piece % pieces * PIECE, end = std::min(begin + PIECE, size);
        const Real* from = parts + image * p.heads * size;
        Real* const to = total + image * size;
        std::copy(from + begin, from + end, to + begin);
        for (int head = 1; head < p.heads; ++head) {
            from += size;
            for (ptrdiff_t i = begin; i < end; ++i) to[i] += from[i];
        }
    }
}

template <class Body>
int without_exceptions(const gevit_shape* shape, Body&& body) {
    try {
        if (!Problem::sensible(*shape)) return GEVIT_BAD_SHAPE;
        return body(Problem(*shape));
    } catch (const std::bad_alloc&) {
        return GEVIT_OUT_OF_MEMORY;
    } catch (...) {
        return GEVIT_BAD_SHAPE;
    }
}

}  // namespace
}  // namespace gevit

using namespace gevit;

extern "C" int gevit_attend_forward(const Real* query, const Real* key, const Real* value, const Real* space,
                                    const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                    Real* out, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        return attend(problem, {query, key, value, nullptr, space, element, offset_index, element_index}, out);
    });
}

extern "C" int gevit_attend_backward(const Real* query, const Real* key, const Real* value, const Real* space,
                                     const Real* element, const int32_t* offset_index, const int32_t* element_index,
                                     const Real* grad_out, Real* grad_query, Real* grad_key, Real* grad_value,
                                     Real* grad_space, Real* grad_element, const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Inputs inputs{query, key, value, nullptr, space, element, offset_index, element_index};
        const Shared shared(problem, false);
        Groups groups(problem, shared.total());
        const Gradients gradients{grad_out, nullptr, grad_query, grad_key, grad_value, nullptr};
        const int code = differentiate(problem, inputs, gradients, groups);
        if (code != GEVIT_OK) return code;
        groups.sum(0, shared.space, grad_space);
        groups.sum(shared.space, shared.element, grad_element);
        return code;
    });
}

extern "C" int gevit_layer_forward(const Real* signal, const Real* weight, const Real* bias, const Real* out_weight,
                                   const Real* out_bias, const Real* space, const Real* element,
                                   const int32_t* offset_index, const int32_t* element_index, Real* mixed, Real* out,
                                   const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& problem) {
        const Layer layer{signal, weight, bias, out_weight, out_bias};
        const Inputs inputs{nullptr, nullptr, nullptr, &layer, space, element, offset_index, element_index};
        const int code = attend(problem, inputs, mixed);
        if (code == GEVIT_OK) merge_heads(problem, layer, mixed, out);
        return code;
    });
}

extern "C" int gevit_layer_backward(const Real* signal, const Real* weight, const Real* bias, const Real* out_weight,
                                    const Real* out_bias, const Real* space, const Real* element,
                                    const int32_t* offset_index, const int32_t* element_index, const Real* mixed,
                                    const Real* grad_out, Real* grad_signal, Real* grad_weight, Real* grad_bias,
                                    Real* grad_out_weight, Real* grad_space, Real* grad_element,
                                    const gevit_shape* shape) {
    return without_exceptions(shape, [&](const Problem& p) {
        const Layer layer{signal, weight, bias, out_weight, out_bias};
        const Inputs inputs{nullptr, nullptr, nullptr, &layer, space, element, offset_index, element_index};
        const Shared shared(p, true);
        Groups groups(p, shared.total());
        const std::unique_ptr<Real[]> parts(new Real[p.tasks * p.in_channels * p.keys * p.pixels]);
        const int code = differentiate(p, inputs, {grad_out, mixed, nullptr, nullptr, nullptr, parts.get()}, groups);
        if (code != GEVIT_OK) return code;
        sum_heads(p, parts.get(), grad_signal);
        groups.sum(0, shared.space, grad_space);
        groups.sum(shared.space, shared.element, grad_element);
        size_t at = shared.space + shared.element;
        const auto row = [&](int head, size_t c) { return c * p.heads + head; };  // of the maps
        groups.sum_of_heads(at, shared.weight, [&](int head, size_t i) {
            return grad_weight + row(head, i / p.in_channels) * p.in_channels + i % p.in_channels;
        });
        groups.sum_of_heads(at += shared.weight, shared.bias, [&](int head, size_t i) {
            return grad_bias + row(head, i);
        });
        groups.sum_of_heads(at += shared.bias, shared.out_weight, [&](int head, size_t i) {
            return grad_out_weight + row(head, i);
        });
        return code;
    });
}
