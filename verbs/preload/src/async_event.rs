//! Asynchronous events of a context.

use std::ffi::c_int;

use longhaul_abi_defs::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED,
    IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event,
    ibv_async_event_element, ibv_context, ibv_cq, ibv_event_type, ibv_qp, ibv_srq,
};
use longhaul_rdma::AsyncEvent;
use longhaul_rnic::QpEvent;

use crate::completion::queue;
use crate::device::{self, PORT};
use crate::guard::{guarded, set_errno, wait_for_event};
use crate::object;
use crate::queue_pair::queue_pair;
use crate::shared_queue::SharedQueue;

fn event_type(kind: QpEvent) -> ibv_event_type {
    match kind {
        QpEvent::Fatal => IBV_EVENT_QP_FATAL,
        QpEvent::RequestError => IBV_EVENT_QP_REQ_ERR,
        QpEvent::AccessError => IBV_EVENT_QP_ACCESS_ERR,
        QpEvent::CommunicationEstablished => IBV_EVENT_COMM_EST,
        QpEvent::SendQueueDrained => IBV_EVENT_SQ_DRAINED,
        QpEvent::LastWqeReached => IBV_EVENT_QP_LAST_WQE_REACHED,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let prepared = guarded(None, || {
        // SAFETY: the program's pointer, checked as far as possible.
        let ours = unsafe { device::context(context) };
        let Some(ours) = ours.filter(|_| !event.is_null()) else {
            set_errno(libc::EINVAL);
            return None;
        };
        if ours.events.is_empty() {
            ours.engine.hand_over();
        }
        Some(ours)
    });
    let Some(ours) = prepared else { return -1 };
    loop {
        // SAFETY: the context's descriptor.
        if !unsafe { wait_for_event(ours.events.fd()) } {
            return -1;
        }
        let taken = guarded(Some(-1), || {
            // SAFETY: the objects of queued events are live; the caller provides space for an
            // event.
            ours.events.take_counted(|found| unsafe {
                event.write(give(found));
                0
            })
        });
        if let Some(result) = taken {
            return result;
        }
    }
}

/// Counts an event as given to the program; from then on the destruction of its object waits for
/// it.
///
/// # Safety
/// The event's object is live, as it is while the event is queued.
unsafe fn give(event: AsyncEvent) -> ibv_async_event {
    match event {
        AsyncEvent::Qp { cookie, kind } => {
            let qp = cookie as *mut ibv_qp;
            // SAFETY: passed on to the caller.
            if let Some(part) = unsafe { queue_pair(qp) } {
                part.async_events.give();
            }
            ibv_async_event {
                element: ibv_async_event_element { qp },
                event_type: event_type(kind),
            }
        }
        AsyncEvent::CqError { cookie } => {
            let cq = cookie as *mut ibv_cq;
            // SAFETY: passed on to the caller.
            if let Some(part) = unsafe { queue(cq) } {
                part.async_events.give();
            }
            ibv_async_event {
                element: ibv_async_event_element { cq },
                event_type: IBV_EVENT_CQ_ERR,
            }
        }
        AsyncEvent::SrqLimitReached { cookie } => {
            let srq = cookie as *mut ibv_srq;
            // SAFETY: passed on to the caller.
            if let Some(part) = unsafe { object::resolve::<SharedQueue>(srq) } {
                part.async_events.give();
            }
            let element = ibv_async_event_element { srq };
            ibv_async_event { element, event_type: IBV_EVENT_SRQ_LIMIT_REACHED }
        }
        AsyncEvent::Port { is_up } => {
            let event_type = if is_up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
            ibv_async_event {
                element: ibv_async_event_element { port_num: PORT.into() },
                event_type,
            }
        }
    }
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
                    if let Some(part) = queue((*event).element.cq) {
                        part.async_events.acknowledge(1);
                    }
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    if let Some(part) = queue_pair((*event).element.qp) {
                        part.async_events.acknowledge(1);
                    }
                }
                IBV_EVENT_SRQ_LIMIT_REACHED => {
                    if let Some(part) = object::resolve::<SharedQueue>((*event).element.srq) {
                        part.async_events.acknowledge(1);
                    }
                }
                _ => {}
            }
        }
    });
}
