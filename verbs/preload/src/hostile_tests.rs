//! Tests of invalid pointers and values. They need no device, since no call gets that far.

use std::ffi::c_int;
use std::ptr;

use longhaul_abi_defs::{
    ibv_ah, ibv_ah_attr, ibv_context, ibv_cq, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_rate_limit_attr,
    ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr, ibv_td, ibv_wc, rdma_cm_id,
};

use crate::address::{ibv_create_ah, ibv_destroy_ah};
use crate::completion::poll_cq;
use crate::device::{context, ibv_query_device};
use crate::domain::{alloc_parent_domain, alloc_td, dealloc_td, ibv_alloc_pd};
use crate::guard::guarded;
use crate::posting::{post_recv, post_send};
use crate::queue_pair::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, modify_qp_rate_limit};
use crate::shared_queue::{ibv_create_srq, ibv_destroy_srq, post_srq_recv};

/// Memory that holds no object of this library, and is larger than any.
#[repr(C, align(64))]
struct Foreign([u8; 4096]);

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

mod handles {
    use super::*;

    #[test]
    fn that_are_null_or_foreign_are_refused() {
        let mut foreign = Foreign([0x5a; 4096]);
        let middle = (&raw mut foreign.0).cast::<u8>().wrapping_add(2048);
        for pointer in [ptr::null_mut(), middle] {
            // SAFETY: null, or in the middle of readable memory.
            unsafe {
                assert!(context(pointer.cast::<ibv_context>()).is_none());
                assert_eq!(ibv_query_device(pointer.cast(), ptr::null_mut()), libc::EINVAL);
                assert!(ibv_alloc_pd(pointer.cast()).is_null());
                assert_eq!(errno(), libc::EINVAL);
                assert!(ibv_create_qp(pointer.cast::<ibv_pd>(), ptr::null_mut()).is_null());
                assert_eq!(ibv_destroy_qp(pointer.cast::<ibv_qp>()), libc::EINVAL);
                let mut attr = ibv_qp_attr::zeroed();
                assert_eq!(ibv_modify_qp(pointer.cast(), &raw mut attr, 1), libc::EINVAL);
                let mut wc: ibv_wc = std::mem::zeroed();
                assert_eq!(poll_cq(pointer.cast::<ibv_cq>(), 1, &raw mut wc), -1);
                let mut bad: *mut ibv_send_wr = ptr::null_mut();
                let mut wr: ibv_send_wr = std::mem::zeroed();
                assert_eq!(post_send(pointer.cast(), &raw mut wr, &raw mut bad), libc::EINVAL);
                assert_eq!(bad, &raw mut wr);
                let mut bad: *mut ibv_recv_wr = ptr::null_mut();
                let mut wr: ibv_recv_wr = std::mem::zeroed();
                assert_eq!(post_recv(pointer.cast(), &raw mut wr, &raw mut bad), libc::EINVAL);
                assert_eq!(bad, &raw mut wr);
                let mut bad: *mut ibv_recv_wr = ptr::null_mut();
                assert_eq!(post_srq_recv(pointer.cast(), &raw mut wr, &raw mut bad), libc::EINVAL);
                assert_eq!(bad, &raw mut wr);
                assert_eq!(ibv_destroy_srq(pointer.cast::<ibv_srq>()), libc::EINVAL);
                let mut init = ibv_srq_init_attr::zeroed();
                assert!(ibv_create_srq(pointer.cast(), &raw mut init).is_null());
                let mut attr = ibv_ah_attr::zeroed();
                assert!(ibv_create_ah(pointer.cast(), &raw mut attr).is_null());
                assert_eq!(ibv_destroy_ah(pointer.cast::<ibv_ah>()), libc::EINVAL);
                assert!(alloc_td(pointer.cast(), ptr::null_mut()).is_null());
                assert_eq!(dealloc_td(pointer.cast::<ibv_td>()), libc::EINVAL);
                assert!(alloc_parent_domain(pointer.cast(), ptr::null_mut()).is_null());
                let mut limit = ibv_qp_rate_limit_attr::zeroed();
                assert_eq!(modify_qp_rate_limit(pointer.cast(), &raw mut limit), libc::EINVAL);
                assert_eq!(crate::cm::destroy_for_test(pointer.cast::<rdma_cm_id>()), -1);
                assert_eq!(errno(), libc::EINVAL);
            }
        }
    }
}

mod panics {
    use super::*;

    #[test]
    fn end_at_the_boundary_as_an_input_output_error() {
        assert_eq!(guarded(-1, || panic!("a bug of ours")), -1);
        assert_eq!(errno(), libc::EIO);
    }
}
