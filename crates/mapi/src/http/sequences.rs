//! The sequence cookie of each session, as the server set it last.
//!
//! A server may renew this cookie with each answer. The far half makes calls of its own, so the
//! client's cookie is out of date, and the far half writes the present one into every request. All
//! flows of a node share the table, because a client may go on in another connection.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use bytes::Bytes;

use crate::emsmdb::ContextHandle;

/// Sessions that are remembered: a thousand clients with a few each.
const SESSIONS_MAX: usize = 4_096;
/// Bytes of a value that is remembered. Those of servers have some tens.
const VALUE_MAX: usize = 1_024;

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct SequenceTable {
    values: BTreeMap<(IpAddr, ContextHandle), Bytes>,
    order: VecDeque<(IpAddr, ContextHandle)>,
}

impl SequenceTable {
    /// The present value.
    pub(super) fn get(&self, server: IpAddr, context: ContextHandle) -> Option<Bytes> {
        self.values.get(&(server, context)).cloned()
    }

    /// The client's value, which holds if the server's is not known.
    pub(super) fn offer(&mut self, server: IpAddr, context: ContextHandle, value: &[u8]) {
        if !value.is_empty() && !self.values.contains_key(&(server, context)) {
            self.set(server, context, value);
        }
    }

    /// The server has set the cookie.
    pub(super) fn set(&mut self, server: IpAddr, context: ContextHandle, value: &[u8]) {
        let key = (server, context);
        if value.len() > VALUE_MAX {
            self.values.remove(&key);
            return;
        }
        if self
            .values
            .insert(key, Bytes::copy_from_slice(value))
            .is_some()
        {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > SESSIONS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_value_replaces_the_clients() {
        let mut table = SequenceTable::default();
        let (server, context) = ([198, 18, 2, 2].into(), ContextHandle([1; 20]));
        table.offer(server, context, b"1");
        table.offer(server, context, b"0");
        assert_eq!(table.get(server, context).as_deref(), Some(&b"1"[..]));
        table.set(server, context, b"2");
        table.offer(server, context, b"1");
        assert_eq!(table.get(server, context).as_deref(), Some(&b"2"[..]));
    }

    #[test]
    fn oldest_session_is_forgotten_at_the_limit() {
        let mut table = SequenceTable::default();
        let server = [198, 18, 2, 2].into();
        let context = |number: usize| {
            let mut handle = [0; 20];
            handle[..8].copy_from_slice(&number.to_le_bytes());
            ContextHandle(handle)
        };
        for number in 0..=SESSIONS_MAX {
            table.set(server, context(number), b"1");
        }
        assert_eq!(table.get(server, context(0)), None);
        assert_eq!(table.values.len(), SESSIONS_MAX);
        assert_eq!(table.order.len(), SESSIONS_MAX);
    }
}
