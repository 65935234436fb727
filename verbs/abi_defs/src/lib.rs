//! The C layouts of libibverbs and librdmacm, as `#[repr(C)]` Rust types.
//!
//! **Purpose.** A library that interposes the public `ibv_*` and `rdma_*`
//! symbols hands out, and is handed, the structures of `infiniband/verbs.h`,
//! `infiniband/sa.h` and `rdma/rdma_cma.h`. Much of the verbs interface never
//! reaches a symbol: inline functions of the headers call through
//! [`ibv_context_ops`], [`verbs_context`], [`ibv_qp_ex`] and [`ibv_cq_ex`], so
//! the layouts *are* the interface. They are declared here once.
//!
//! **Source.** rdma-core 44, as shipped by Debian 12. The layouts have been
//! append-only for years, guarded by `comp_mask` fields and by
//! [`verbs_context::sz`], so programs built against neighbouring versions work
//! with them.
//!
//! **Conventions.**
//! - Names are the C names. Types that C leaves untagged are named after the
//!   member they describe (`wr.rdma` of `ibv_send_wr` is [`ibv_send_wr_rdma`]).
//! - A C enumeration that is stored in a structure, passed or returned is an integer newtype, never
//!   a Rust `enum`: the caller may store any value, and an invalid discriminant would be undefined
//!   behaviour before it could be rejected. [`ibv_qp_type::c_name`] and similar functions return
//!   whether a value is known.
//! - A C enumeration used as a bit set is an integer alias with constants.
//! - Big-endian fields are the newtypes [`__be16`], [`__be32`] and [`__be64`].
//! - Function pointers are `Option`, null if absent.
//! - All zeroes is a valid value of every type, and its `zeroed` constructor returns it.
//!
//! **Verification.** The macros that declare the types also record them. The unit tests compile C
//! programs against the installed headers that compare size, alignment, the offset, size and C type
//! of every field (including function signatures), the number of fields, and every constant, and
//! that detect missing enumerators. If the headers or the compiler are missing, the tests fail and
//! are not skipped. Three private facts that no installed header states carry a note:
//! [`_compat_ibv_port_attr`] (compared with the head of [`ibv_port_attr`]) and the two
//! `IBV_GID_TYPE_SYSFS_*` values.
//!
//! **Deliberately absent.** Behaviour, symbols, provider-private structures (`verbs_device`,
//! `verbs_qp`, …), and the verbs of raw packet queue pairs: flow steering, counters, work queues,
//! device memory and tag matching appear as opaque types, so that their slots exist and can be
//! null.

#![cfg_attr(not(test), no_std)]
#![allow(
    non_camel_case_types,
    non_snake_case,
    reason = "types and members carry the names of their C counterparts"
)]

#[macro_use]
mod macros;

mod byte_order;
mod rdmacm;
mod sa;
mod verbs;
mod verbs_consts;
mod verbs_device;
mod verbs_ops;

#[cfg(test)]
mod c_headers;

pub use byte_order::{__be16, __be32, __be64};
pub use rdmacm::*;
pub use sa::*;
pub use verbs::*;
pub use verbs_consts::*;
pub use verbs_device::*;
pub use verbs_ops::*;
