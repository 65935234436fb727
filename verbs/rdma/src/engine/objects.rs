//! Objects of the device, and the destinations of their events.

use super::Engine;
use crate::device_state::{AsyncEvent, AsyncSink, CqSinks};
use crate::error::RdmaError;
use crate::event_queue::EventQueue;
use longhaul_rnic::{CqId, QpAttr, QpInit, QpState, SrqId, SrqInit};
use longhaul_units::Qpn;
use std::sync::Arc;

impl Engine {
    /// Creates a completion queue whose events go to `sinks`.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn create_cq(&self, capacity: u32, sinks: CqSinks) -> Result<CqId, RdmaError> {
        let mut state = self.lock()?;
        let cq = state.rnic.create_cq(capacity)?;
        state.cqs.insert(cq, sinks);
        Ok(cq)
    }

    /// Changes the destination of a completion queue's events.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_cq_sinks(&self, cq: CqId, sinks: CqSinks) -> Result<(), RdmaError> {
        self.lock()?.cqs.insert(cq, sinks);
        Ok(())
    }

    /// Destroys a completion queue. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`] while a queue pair uses it, [`RdmaError::Forked`].
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.rnic.destroy_cq(cq)?;
        state.cqs.remove(&cq);
        Ok(())
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn create_srq(&self, init: &SrqInit) -> Result<SrqId, RdmaError> {
        Ok(self.lock()?.rnic.create_srq(init)?)
    }

    /// Changes the destination of a shared receive queue's events.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_srq_sink(&self, srq: SrqId, sink: AsyncSink) -> Result<(), RdmaError> {
        self.lock()?.srqs.insert(srq, sink);
        Ok(())
    }

    /// Destroys a shared receive queue. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`] while a queue pair uses it, [`RdmaError::Forked`].
    pub fn destroy_srq(&self, srq: SrqId) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.rnic.destroy_srq(srq)?;
        state.srqs.remove(&srq);
        Ok(())
    }

    /// Creates a queue pair whose asynchronous events go to `sink`; attaches the port if it is not
    /// attached yet.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`], and those of [`Engine::start`].
    pub fn create_qp(&self, init: &QpInit, sink: AsyncSink) -> Result<Qpn, RdmaError> {
        self.start()?;
        let mut state = self.lock()?;
        let qpn = state.rnic.create_qp(init)?;
        state.qps.insert(qpn, sink);
        Ok(qpn)
    }

    /// Changes the destination of a queue pair's events.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn set_qp_sink(&self, qpn: Qpn, sink: AsyncSink) -> Result<(), RdmaError> {
        self.lock()?.qps.insert(qpn, sink);
        Ok(())
    }

    /// Modifies a queue pair. The transition to ready to receive waits, for a bounded time, for a
    /// link that is not up yet.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`] and, if the attributes contain an address, those
    /// of [`Engine::resolve`].
    pub fn modify_qp(&self, qpn: Qpn, attr: &QpAttr) -> Result<(), RdmaError> {
        if attr.state == Some(QpState::ReadyToReceive) {
            self.await_peer()?;
        }
        if let Some(address) = &attr.address {
            self.resolve(address.destination_ip)?;
        }
        self.with(|rnic, now| rnic.modify_qp(now, qpn, attr))??;
        Ok(())
    }

    /// Destroys a queue pair. No event of it is queued after this returns.
    ///
    /// # Errors
    /// [`RdmaError::Verbs`], [`RdmaError::Forked`].
    pub fn destroy_qp(&self, qpn: Qpn) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        let now = self.now();
        state.rnic.destroy_qp(qpn)?;
        state.qps.remove(&qpn);
        state.send(now);
        self.rouse_thread(&state);
        Ok(())
    }

    /// Sends changes of the link to `watcher` while it exists. The first time that the link comes
    /// up is not an event, unless the program was told that it is down.
    ///
    /// # Errors
    /// [`RdmaError::Forked`].
    pub fn watch_port(&self, watcher: &Arc<EventQueue<AsyncEvent>>) -> Result<(), RdmaError> {
        let mut state = self.lock()?;
        state.watchers.retain(|known| known.strong_count() > 0);
        state.watchers.push(Arc::downgrade(watcher));
        Ok(())
    }
}
