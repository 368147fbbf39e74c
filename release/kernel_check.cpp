// Runs the kernel, forward and backward, on made-up numbers, and prints the results: two machines must agree on them.
#include <cstdio>
#include <vector>

#include "attend.h"

namespace {

struct Numbers {
    uint64_t state = 1;
    Real next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return Real(double(state >> 11) / double(uint64_t(1) << 53) - 0.5);
    }
    std::vector<Real> many(size_t count) {
        std::vector<Real> found(count);
        for (Real& number : found) number = 4 * next();
        return found;
    }
};

void print(const std::vector<Real>& numbers) {
    for (Real number : numbers) std::printf("%.17g\n", double(number));
}

}  // namespace

int main() {
    // 2 images of 9x7 pixels, 6 channels, 2 heads, 4 group elements, 3x3 neighbourhoods.
    gevit_shape shape{};
    shape.batch = 2, shape.channels = 6, shape.heads = 2, shape.height = 9, shape.width = 7, shape.neighborhood = 3;
    shape.outputs = shape.queries = shape.keys = 4;
    shape.space_rows = 9, shape.space_channels = 4, shape.element_rows = 4, shape.element_channels = 2;
    shape.threads = 2, shape.scale = 0.4;

    Numbers numbers;
    const size_t signal = 2 * 6 * 2 * 4 * 9 * 7;
    const auto query = numbers.many(signal), key = numbers.many(signal), value = numbers.many(signal);
    const auto space = numbers.many(9 * 4), element = numbers.many(4 * 2), grad = numbers.many(signal);
    std::vector<int32_t> offsets, elements;
    for (int h = 0; h < 4; ++h)
        for (int j = 0; j < 9; ++j) offsets.push_back((j * (1 + 3 * (h % 2)) + h) % 9);
    for (int h = 0; h < 4; ++h)
        for (int q = 0; q < 4; ++q)
            for (int k = 0; k < 4; ++k) elements.push_back((h + 2 * q + 3 * k) % 4);

    std::vector<Real> out(signal), grad_query(signal), grad_key(signal), grad_value(signal), grad_space(36), grad_element(8);
    const int forward = gevit_attend_forward(query.data(), key.data(), value.data(), space.data(), element.data(),
                                             offsets.data(), elements.data(), out.data(), &shape);
    const int backward = gevit_attend_backward(query.data(), key.data(), value.data(), space.data(), element.data(),
                                               offsets.data(), elements.data(), grad.data(), grad_query.data(),
                                               grad_key.data(), grad_value.data(), grad_space.data(),
                                               grad_element.data(), &shape);
    for (const auto& result : {out, grad_query, grad_key, grad_value, grad_space, grad_element}) print(result);
    return forward | backward;
}
