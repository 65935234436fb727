/* Checks for the C programs of these tests: each failed one prints the expectation, and all are counted. */
#pragma once

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            failures++;                                                               \
            printf("%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
        }                                                                             \
    } while (0)

/* A call that returns an errno value, like the verbs that change or destroy an object. */
#define RETURNS(expected, call)                                                       \
    do {                                                                              \
        int got_ = (call);                                                            \
        if (got_ != (expected)) {                                                     \
            failures++;                                                               \
            printf("%s:%d: %s: %d instead of %d\n", __FILE__, __LINE__, #call, got_, (expected)); \
        }                                                                             \
    } while (0)

/* A call that creates an object, and must fail with an errno value. */
#define REFUSED(expected, call)                                                       \
    do {                                                                              \
        errno = 0;                                                                    \
        void *got_ = (void *)(call);                                                  \
        if (got_ || errno != (expected)) {                                            \
            failures++;                                                               \
            printf("%s:%d: %s: %p, errno %d instead of %d\n", __FILE__, __LINE__, #call, got_, errno, \
                   (expected));                                                       \
        }                                                                             \
    } while (0)

#define NEED(pointer)                                                                 \
    do {                                                                              \
        if (!(pointer)) {                                                             \
            printf("%s:%d: %s failed: %s\n", __FILE__, __LINE__, #pointer, strerror(errno)); \
            exit(2);                                                                  \
        }                                                                             \
    } while (0)

static inline int verdict(void)
{
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}

static inline struct ibv_context *open_device(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    NEED(list && count == 1);
    struct ibv_context *context = ibv_open_device(list[0]);
    NEED(context);
    ibv_free_device_list(list);
    return context;
}
