// The JSON API: fetch, with the token that every write wants.

const token = document.querySelector('meta[name="csrf-token"]').content;

// An answer that is no success.  status is 0 when there was no answer.
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function call(method, url, body) {
  const options = { method, headers: { "X-CSRF-Token": token } };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    console.warn(method, url, error);
    throw new ApiError(0, "offline", "The server does not answer.");
  }
  if (response.status === 204) return null;
  const type = response.headers.get("Content-Type") ?? "";
  if (!type.startsWith("application/json")) {
    throw new ApiError(response.status, "error", "The server has a problem.");
  }
  const answer = await response.json();
  if (!response.ok) {
    const { code, message } = answer.error;
    throw new ApiError(response.status, code, message);
  }
  return answer;
}
