//! Asynchronous events of a context.

use std::ffi::c_int;

use longhaul_abi_defs::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SQ_DRAINED, ibv_async_event, ibv_async_event_element, ibv_context, ibv_cq, ibv_event_type,
    ibv_qp,
};
use longhaul_rdma::AsyncEvent;
use longhaul_rnic::QpEvent;

use crate::completion::Queue;
use crate::device;
use crate::guard::{guarded, minus_one};
use crate::object;
use crate::queue_pair::QueuePair;

fn event_type(kind: QpEvent) -> ibv_event_type {
    match kind {
        QpEvent::Fatal => IBV_EVENT_QP_FATAL,
        QpEvent::RequestError => IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessError => IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::CommunicationEstablished => IBV_EVENT_COMM_EST,
        QpEvent::SendQueueDrained => IBV_EVENT_SQ_DRAINED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    guarded(-1, || {
        // SAFETY: the program's pointer, checked as far as that goes.
        let Some(ours) = (unsafe { device::context(context) }) else { return minus_one(libc::EINVAL) };
        if event.is_null() {
            return minus_one(libc::EINVAL);
        }
        if ours.events.is_empty() {
            ours.engine.hand_over();
        }
        let filled = match ours.events.pop() {
            Ok(AsyncEvent::Qp { cookie, kind }) => {
                let qp = cookie as *mut ibv_qp;
                // SAFETY: events of destroyed queue pairs are taken out of the queue.
                if let Some(part) = unsafe { object::resolve::<QueuePair>(qp) } {
                    part.async_events.give();
                }
                ibv_async_event { element: ibv_async_event_element { qp }, event_type: event_type(kind) }
            }
            Ok(AsyncEvent::CqError { cookie }) => {
                let cq = cookie as *mut ibv_cq;
                // SAFETY: events of destroyed completion queues are taken out of the queue.
                if let Some(part) = unsafe { object::resolve::<Queue>(cq) } {
                    part.async_events.give();
                }
                ibv_async_event { element: ibv_async_event_element { cq }, event_type: IBV_EVENT_CQ_ERR }
            }
            Err(error) => return minus_one(error.raw_os_error().unwrap_or(libc::EIO)),
        };
        // SAFETY: the caller gives room for an event.
        unsafe { event.write(filled) };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    guarded((), || {
        if event.is_null() {
            return;
        }
        // SAFETY: an event that ibv_get_async_event filled; the member read is that of its type.
        unsafe {
            match (*event).event_type {
                IBV_EVENT_CQ_ERR => {
                    if let Some(part) = object::resolve::<Queue>((*event).element.cq) {
                        part.async_events.acknowledge(1);
                    }
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED => {
                    if let Some(part) = object::resolve::<QueuePair>((*event).element.qp) {
                        part.async_events.acknowledge(1);
                    }
                }
                _ => {}
            }
        }
    });
}
