"""Requests that name a program, as their clients send them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

UUID = "01992a8e-7f3c-7b61-9d52-3c1a0de5f7aa"
CLAUDE_SESSION = "e96634a3-fa28-4083-b354-55542e2dca01"
CLAUDE_DEVICE = "4f0c2b" * 10 + "4f0c"
CLAUDE_OLD_USER = f"user_{CLAUDE_DEVICE}_account__session_{CLAUDE_SESSION}"
CLAUDE_NEW_USER = json.dumps({"device_id": CLAUDE_DEVICE, "account_uuid": "", "session_id": CLAUDE_SESSION})
OPENCODE_SESSION = "ses_6b2f41c8dffeRqK2tXwYp0VnLm"


@dataclass(frozen=True)
class Sent:
    """A request as its client sends it, and what it says."""

    source: str
    value: str
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)


RECORDED = [
    Sent("program-header", "run-1", {"X-Autellix-Program-ID": "run-1"}),
    Sent("session-header", "s-1", {"X-Autellix-Session-ID": "s-1"}),
    Sent("thread-header", "2", {"X-Autellix-Thread-ID": "2"}),
    Sent("final-header", "final", {"X-Autellix-Final": "true"}),
    Sent(
        "agentic-program",
        "task-a:lead",
        body={"vllm_xargs": {"agentic_context": {"program_id": "task-a:lead"}}},
    ),
    Sent(
        "agentic-program",
        "task-a:lead",
        body={"vllm_xargs": {"agentic_context": '{"program_id": "task-a:lead", "task_id": null}'}},
    ),
    Sent(
        "agentic-task",
        "task-a",
        body={"vllm_xargs": {"agentic_context": {"task_id": "task-a", "agent_id": "lead"}}},
    ),
    Sent(
        "agentic-root",
        "task-a:lead",
        body={
            "vllm_xargs": {
                "agentic_context": {
                    "program_id": "task-a:critic",
                    "parent_program_id": "task-a:researcher",
                    "root_program_id": "task-a:lead",
                }
            }
        },
    ),
    Sent(
        "agentic-parent",
        "task-a:lead",
        body={
            "vllm_xargs": {
                "agentic_context": {
                    "program_id": "task-a:critic",
                    "parent_program_id": "task-a:lead",
                    "step_id": 7,
                }
            }
        },
    ),
    Sent("agentic-session", "s", body={"vllm_xargs": {"agentic_context": {"session_id": "s"}}}),
    Sent(
        "agentic-agent",
        "critic",
        body={"vllm_xargs": {"agentic_context": {"task_id": "task-a", "agent_id": "critic"}}},
    ),
    Sent("agentic-resume", "final", body={"vllm_xargs": {"agentic_context": {"expected_resume": False}}}),
    Sent("agent-hint-resume", "final", body={"agent_hint": {"session_id": "s", "expected_resume": False}}),
    Sent(
        "nvext-close", "final", body={"nvext": {"session_control": {"session_id": "s-1", "action": "close"}}}
    ),
    Sent("baggage", "c-1", {"baggage": "user.id=u,gen_ai.conversation.id=c-1"}),
    Sent("meta-baggage", "s-1", body={"_meta": {"progressToken": 7, "baggage": "session.id=s-1"}}),
    Sent("agent-hint", "root", body={"agent_hint": {"session_id": "root", "blocks_parent": False}}),
    Sent(
        "agent-hint-parent", "root", body={"agent_hint": {"session_id": "child", "parent_session_id": "root"}}
    ),
    Sent(
        "dynamo-session", "research-run-42:researcher", {"x-dynamo-session-id": "research-run-42:researcher"}
    ),
    Sent(
        "dynamo-parent",
        "research-run-42",
        {"x-dynamo-session-id": "research-run-42:r", "x-dynamo-parent-session-id": "research-run-42"},
    ),
    Sent("dynamo-final", "final", {"x-dynamo-session-id": "run", "x-dynamo-session-final": "true"}),
    Sent("dynamo-trajectory", "run-42:r", {"x-dynamo-trajectory-id": "run-42:r"}),
    Sent(
        "nvext-session", "s-1", body={"nvext": {"session_control": {"session_id": "s-1", "action": "open"}}}
    ),
    Sent("nvext-context", "s-1", body={"nvext": {"agent_context": {"session_id": "s-1"}}}),
    Sent("body-program-id", "swe-17", body={"program_id": "swe-17"}),
    Sent("extra-body-program-id", "swe-17", body={"extra_body": {"program_id": "swe-17"}}),
    Sent(
        "body-job-id", "django__django-11099", body={"job_id": "django__django-11099", "is_last_step": False}
    ),
    Sent("body-last-step", "final", body={"job_id": "django__django-11099", "is_last_step": True}),
    Sent("x-session-id", "chat-9", {"X-Session-ID": "chat-9"}),
    Sent(
        "x-parent-session-id",
        OPENCODE_SESSION,
        {
            "x-session-affinity": "ses_child",
            "X-Session-Id": "ses_child",
            "x-parent-session-id": OPENCODE_SESSION,
            "User-Agent": "opencode/1.3.0",
        },
    ),
    Sent("body-session-id", "chat-9", body={"session_id": "chat-9"}),
    Sent("xargs-session-id", "chat-9", body={"vllm_xargs": {"session_id": "chat-9"}}),
    Sent("sglang-session", "s-1", body={"session_params": {"session_id": "s-1"}}),
    Sent("sglang-session-id", "s-1", body={"session_params": {"id": "s-1", "rid": None}}),
    Sent("claude-code-session", CLAUDE_SESSION, {"X-Claude-Code-Session-Id": CLAUDE_SESSION}),
    Sent("claude-code-user-id", CLAUDE_SESSION, body={"metadata": {"user_id": CLAUDE_OLD_USER}}),
    Sent("claude-code-user-id", CLAUDE_SESSION, body={"metadata": {"user_id": CLAUDE_NEW_USER}}),
    Sent("claude-code-user-id", UUID, body={"metadata": {"user_id": f"session_{UUID}"}}),
    Sent(
        "claude-code-agent",
        "a8f3c21",
        {
            "X-Claude-Code-Session-Id": CLAUDE_SESSION,
            "x-claude-code-agent-id": "a8f3c21",
            "x-claude-code-parent-agent-id": "a11e902",
        },
    ),
    Sent("codex-session", UUID, {"session-id": UUID, "thread-id": UUID, "x-client-request-id": UUID}),
    Sent("codex-thread", "0199-child", {"session-id": UUID, "thread-id": "0199-child"}),
    Sent("body-codex-session", UUID, body={"client_metadata": {"session_id": UUID, "thread_id": UUID}}),
    Sent("body-codex-thread", "0199", body={"client_metadata": {"session_id": UUID, "thread_id": "0199"}}),
    Sent(
        "opencode-session",
        OPENCODE_SESSION,
        {
            "x-opencode-project": "5a1c",
            "x-opencode-session": OPENCODE_SESSION,
            "x-opencode-request": "msg_1",
            "x-opencode-client": "cli",
        },
    ),
    Sent("session-affinity", OPENCODE_SESSION, {"x-session-affinity": OPENCODE_SESSION}),
    Sent("litellm-session", "agent-run-abc123", {"x-litellm-session-id": "agent-run-abc123"}),
    Sent("litellm-trace", "agent-run-abc123", {"x-litellm-trace-id": "agent-run-abc123"}),
    Sent("body-litellm-session-id", "agent-run-abc123", body={"litellm_session_id": "agent-run-abc123"}),
    Sent("metadata-session-id", "agent-run-abc123", body={"metadata": {"session_id": "agent-run-abc123"}}),
    Sent("metadata-sessionid", UUID, body={"metadata": {"sessionId": UUID, "promptId": "p"}}),
    Sent("conversation", "conv_689667905b048191", body={"conversation": "conv_689667905b048191"}),
    Sent("conversation-id", "conv_689667905b048191", body={"conversation": {"id": "conv_689667905b048191"}}),
    Sent("llm-d-fairness", "agent-a", {"x-llm-d-inference-fairness-id": "agent-a"}),
    Sent("gateway-fairness", "agent-a", {"x-gateway-inference-fairness-id": "agent-a"}),
    Sent("smg-routing-key", "agent-a", {"X-SMG-Routing-Key": "agent-a"}),
    Sent("prompt-cache-key", f"session_{UUID}", body={"prompt_cache_key": f"session_{UUID}"}),
    Sent("prompt-cache-key", f"agents-sdk:run:{UUID}", body={"prompt_cache_key": f"agents-sdk:run:{UUID}"}),
    Sent("prompt-cache-key", UUID, body={"prompt_cache_key": UUID}),
    Sent("prompt-cache-key", OPENCODE_SESSION, body={"prompt_cache_key": OPENCODE_SESSION}),
]
