//! The device below `/sys`: file calls on it, redirected to the tree that the device keeps.
//!
//! This library also defines the C library's functions that take a path. A path at or below
//! `/sys/class/infiniband` or `/sys/devices/virtual/infiniband` is replaced by the path of the same
//! file in the tree (`longhaul_rdma::sysfs`), and the C library does the rest: directories are
//! read, descriptors work and links lead as they would below `/sys`. Other paths are passed on
//! unchanged, after a comparison of their first bytes or, if relative, a search for "infiniband".
//! The device's command file, `/dev/infiniband/uverbs-longhaul0`, is `/dev/null`.
//! Nothing in the tree can be written through these paths, as on `/sys` without privilege.
//!
//! **Signals.** A call takes no lock and allocates nothing, except the first of each function,
//! which looks up the C library's, and the first redirected one of a process, which completes the
//! tree. Calls of a signal handler that interrupts the latter are passed on to the kernel.
//!
//! **Not redirected**: system calls that bypass the C library (static and Go programs), links from
//! elsewhere into these directories, and `ftw` and `fts_open` on them. A listing of `/sys/class`
//! does not show `infiniband` if the kernel has none. A mount of the tree
//! (`longhaul_rdma::sysfs::mount_over`) serves all of these.

mod calls;
mod names;
mod path;
mod real;
mod tree;
