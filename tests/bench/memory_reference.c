/* What bench_memory.py holds perfkit's memory probes to: the same kernels and the same walk in C. */
#include <stddef.h>

void copy(const double *restrict a, double *restrict c, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) c[i] = a[i];
}

void scale(double *restrict b, const double *restrict c, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) b[i] = 3.0 * c[i];
}

void add(const double *restrict a, const double *restrict b, double *restrict c, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
}

void triad(double *restrict a, const double *restrict b, const double *restrict c, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) a[i] = b[i] + 3.0 * c[i];
}

void update(double *restrict a, const double *restrict b, size_t n) {
#pragma omp simd
    for (size_t i = 0; i < n; i++) a[i] += b[i];
}

double read_sum(const double *a, size_t n) {
    double total = 0;
#pragma omp simd reduction(+ : total)
    for (size_t i = 0; i < n; i++) total += a[i];
    return total;
}

/* 16 hops a turn, as multichase and lat_mem_rd have it. */
void *chase(void *at, long groups) {
#define HOP at = *(void *volatile *)at;
#define FOUR HOP HOP HOP HOP
    while (groups--) { FOUR FOUR FOUR FOUR }
    return at;
}
